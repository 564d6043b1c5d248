"""Lookup tables travel with the graph that looks things up in them, from live models, SavedModels and v1 graphs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import meta_graph_pb2

from paramsync.errors import GraphError
from paramsync.graphs.capturing import capture
from paramsync.graphs.graph import Graph
from paramsync.graphs.sources.meta_graphs import draft_of_meta
from paramsync.graphs.sources.saved_models import SavedModel, parsed_saved_model
from paramsync.graphs.sources.v1_graphs import draft_of_tensors
from tests.support.captured import answers, saved_graph, saved_parameters

v1 = tf.compat.v1


class Tables(tf.Module):
    """Every kind of lookup table, looked into in a nested function and in a branch."""

    def __init__(self, vocabulary: Path) -> None:
        super().__init__()
        lookup = tf.lookup
        words = tf.constant(["to", "be"])
        self.static = lookup.StaticHashTable(lookup.KeyValueTensorInitializer(words, tf.constant([3, 4])), -1)
        lines = (tf.string, lookup.TextFileIndex.WHOLE_LINE, tf.int64, lookup.TextFileIndex.LINE_NUMBER)
        self.vocabulary = lookup.StaticVocabularyTable(lookup.TextFileInitializer(str(vocabulary), *lines), 3)
        self.mutable = lookup.experimental.MutableHashTable(tf.string, tf.float32, 0.5)
        self.mutable.insert(words, tf.constant([0.1, 0.2]))
        self.vectors = lookup.experimental.MutableHashTable(tf.string, tf.float32, tf.zeros(2))
        self.vectors.insert(words, tf.constant([[1.0, 2.0], [3.0, 4.0]]))
        self.scale = tf.Variable(2.0)
        self.inner = tf.function(self.static.lookup)

    @tf.function(input_signature=[tf.TensorSpec((None,), tf.string)])
    def __call__(self, word: tf.Tensor) -> dict[str, tf.Tensor]:
        return {
            "static": tf.cond(tf.size(word) > 1, lambda: self.inner(word), lambda: tf.zeros_like(word, tf.int32)),
            "vocabulary": self.vocabulary.lookup(word),
            "mutable": self.mutable.lookup(word) * self.scale,
            "vectors": self.vectors.lookup(word),
        }


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    (tmp_path / "words.txt").write_text("or\nnot\nto\n")
    return Tables(tmp_path / "words.txt")


WORD = tf.constant(["to", "not", "be", "question"])


def test_lookup_tables_travel_with_the_graph(tables: Tables) -> None:
    captured = capture(tables)
    found, expected = answers(captured, {"word": WORD}), tables(WORD)
    tables.mutable.insert(tf.constant(["to"]), tf.constant([7.0]))  # what was captured does not follow
    again = answers(captured, {"word": WORD})
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value.numpy(), err_msg=name)
        np.testing.assert_array_equal(again[name], value.numpy(), err_msg=name)


@pytest.mark.parametrize("times", [1, 2], ids=["saved", "saved, loaded and saved again"])
def test_lookup_tables_of_a_saved_model_are_read_from_its_assets_and_checkpoint(
    tables: Tables, tmp_path: Path, times: int
) -> None:
    module: Any = tables
    for time in range(times):
        function = module.signatures["words"] if time else tables.__call__
        tf.saved_model.save(module, tmp_path / str(time), signatures={"words": function})
        module = tf.saved_model.load(tmp_path / str(time))
    directory = tmp_path / str(times - 1)
    graph = Graph.from_bytes(capture(directory).graph.to_bytes())
    found = graph(saved_parameters(directory, graph), {"word": WORD}, signature="words")
    for name, value in tables(WORD).items():
        np.testing.assert_array_equal(found[name], value.numpy(), err_msg=name)


class Dense(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = tf.lookup.experimental.DenseHashTable(tf.int64, tf.float32, 0.0, empty_key=-1, deleted_key=-2)
        self.table.insert([3], [0.5])

    @tf.function(input_signature=[tf.TensorSpec((None,), tf.int64)])
    def __call__(self, keys: tf.Tensor) -> tf.Tensor:
        return self.table.lookup(keys)


def test_a_table_with_places_that_may_be_empty_is_refused_with_what_to_use(tmp_path: Path) -> None:
    module = Dense()
    tf.saved_model.save(module, tmp_path, signatures=module.__call__)
    for source in (module, tmp_path):
        with pytest.raises(GraphError, match=r"is a DenseHashTable, .* expected a StaticHashTable"):
            capture(source)


def from_file(path: Path) -> tuple[tf.Tensor, tf.Tensor]:
    text = v1.placeholder(tf.string, (None,), name="text")
    file = tf.constant(str(path), name="file")
    index = tf.lookup.TextFileIndex
    words = tf.lookup.TextFileInitializer(file, tf.string, index.WHOLE_LINE, tf.int64, index.LINE_NUMBER)
    return text, tf.identity(tf.lookup.StaticVocabularyTable(words, 1).lookup(text), name="y")


def saved_with_file(directory: Path) -> Path:
    vocabulary = directory / "vocabulary.txt"
    vocabulary.write_text("one\ntwo\nthree\n")
    with tf.Graph().as_default(), v1.Session() as session:
        text, y = from_file(vocabulary)
        builder = v1.saved_model.Builder(str(directory / "exported"))
        assets = v1.get_collection(v1.GraphKeys.ASSET_FILEPATHS)
        builder.add_meta_graph_and_variables(
            session,
            ["serve"],
            {"words": v1.saved_model.predict_signature_def({"text": text}, {"y": y})},
            assets_collection=assets,
            main_op=v1.tables_initializer(),
        )
        builder.save()
    vocabulary.write_text("never\nread\n")
    return directory / "exported"


def test_tables_of_words_from_a_file_are_read_from_the_saved_models_assets(tmp_path: Path) -> None:
    graph = saved_graph(saved_with_file(tmp_path))
    again = Graph.from_bytes(graph.to_bytes())
    found = again([], {"text": tf.constant(["three", "one", "four"])}, signature="words")
    np.testing.assert_array_equal(found["y"], [2, 0, 3])


def test_a_file_that_a_meta_graph_names_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("one\ntwo\n")
    with tf.Graph().as_default() as graph:
        from_file(tmp_path / "words.txt")
        meta = v1.train.export_meta_graph(graph=graph)
    with pytest.raises(GraphError, match=r"from a file b'.*words\.txt'.* only files that are part of a SavedModel"):
        draft_of_meta(meta, ["text"], ["y"])


@pytest.mark.parametrize("name", ["../vocabulary.txt", "/etc/hostname", "link"])
def test_an_asset_outside_the_assets_is_refused(tmp_path: Path, name: str) -> None:
    directory = saved_with_file(tmp_path)
    (directory / "assets" / "link").symlink_to(tmp_path / "vocabulary.txt")
    saved = parsed_saved_model(directory)
    (packed,) = saved.meta_graphs[0].collection_def["saved_model_assets"].any_list.value
    asset = meta_graph_pb2.AssetFileDef()
    packed.Unpack(asset)
    asset.filename = name
    packed.Pack(asset)
    (directory / "saved_model.pb").write_bytes(saved.SerializeToString())
    with pytest.raises(GraphError, match="expected a file in the folder assets"):
        SavedModel(directory).draft()


def test_a_table_that_only_a_saver_fills_is_refused_in_one_line() -> None:
    with tf.Graph().as_default():
        text = v1.placeholder(tf.string, (None,), name="text")
        weight = v1.get_variable("weight", [], tf.float32)
        counts = tf.lookup.experimental.MutableHashTable(tf.string, tf.float32, -1.0, name="counts")
        y = counts.lookup(text) * weight
        v1.train.Saver()
        with pytest.raises(GraphError, match=r"\Anothing in the graph fills the table 'counts.*\Z"):
            draft_of_tensors([text], [y])


def test_a_table_that_needs_an_input_to_be_filled_is_refused() -> None:
    with tf.Graph().as_default():
        text = v1.placeholder(tf.string, (None,), name="text")
        words = tf.lookup.KeyValueTensorInitializer(v1.placeholder(tf.string, (2,)), tf.range(2, dtype=tf.int64))
        y = tf.lookup.StaticHashTable(words, -1).lookup(text)
    with pytest.raises(GraphError, match="cannot be filled"):
        draft_of_tensors([text], [y])
