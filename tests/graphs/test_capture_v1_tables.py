"""Lookup tables of v1 graphs are filled from what is in the graph or its SavedModel, and from nothing else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import meta_graph_pb2

from paramsync.errors import GraphError
from paramsync.graphs.draft import finish
from paramsync.graphs.graph import Graph
from paramsync.graphs.sources.meta_graphs import draft_of_meta
from paramsync.graphs.sources.saved_models import SavedModel, parsed_saved_model
from paramsync.graphs.sources.v1_graphs import draft_of_tensors
from tests.support.v1_captured import saved_graph, two_layers

v1 = tf.compat.v1


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


def test_tables_of_a_live_graph_are_read_from_wherever_they_are(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("one\ntwo\n")
    with tf.Graph().as_default():
        draft = draft_of_tensors(*from_file(tmp_path / "words.txt"))
    np.testing.assert_array_equal(finish(draft)([], {"text": tf.constant(["two"])})["y"], [1])


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
    with pytest.raises(GraphError, match=r"expected assets in its own folder|found a symbolic link"):
        SavedModel(directory).draft()


def test_an_asset_that_is_not_there_is_named(tmp_path: Path) -> None:
    directory = saved_with_file(tmp_path)
    (directory / "assets" / "vocabulary.txt").unlink()
    with pytest.raises(GraphError, match=r"vocabulary\.txt: expected a file"):
        saved_graph(directory)


def test_a_table_that_nothing_fills_is_refused_by_name() -> None:
    with tf.Graph().as_default():
        text = v1.placeholder(tf.string, (None,), name="text")
        y = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1, name="counts").lookup(text)
    with pytest.raises(GraphError, match="nothing in the graph fills the table 'counts"):
        draft_of_tensors([text], [y])


def test_a_table_that_only_a_saver_fills_is_refused_in_one_line() -> None:
    with tf.Graph().as_default():
        text = v1.placeholder(tf.string, (None,), name="text")
        weight = v1.get_variable("weight", [], tf.float32)
        counts = tf.lookup.experimental.MutableHashTable(tf.string, tf.float32, -1.0, name="counts")
        y = counts.lookup(text) * weight
        v1.train.Saver()
        with pytest.raises(GraphError, match=r"\Anothing in the graph fills the table 'counts.*\Z"):
            draft_of_tensors([text], [y])


def test_a_table_that_the_outputs_do_not_need_is_of_no_interest() -> None:
    with tf.Graph().as_default():
        x, y = two_layers()
        tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, -1).lookup(tf.constant(["a"]))
        assert finish(draft_of_tensors([x], [y])).parameters


def test_a_table_that_needs_an_input_to_be_filled_is_refused() -> None:
    with tf.Graph().as_default():
        text = v1.placeholder(tf.string, (None,), name="text")
        words = tf.lookup.KeyValueTensorInitializer(v1.placeholder(tf.string, (2,)), tf.range(2, dtype=tf.int64))
        y = tf.lookup.StaticHashTable(words, -1).lookup(text)
    with pytest.raises(GraphError, match="cannot be filled"):
        draft_of_tensors([text], [y])


def test_tables_by_reference_serve_too() -> None:
    with tf.Graph().as_default():
        text = v1.placeholder(tf.string, (None,), name="text")
        table = tf.raw_ops.HashTable(key_dtype=tf.string, value_dtype=tf.int64)
        tf.raw_ops.InitializeTable(table_handle=table, keys=["one", "two"], values=tf.constant([1, 2], tf.int64))
        missing = tf.constant(-1, tf.int64)
        y = tf.raw_ops.LookupTableFind(table_handle=table, keys=text, default_value=missing)
        graph = finish(draft_of_tensors({"text": text}, {"y": y}))
    np.testing.assert_array_equal(graph([], {"text": tf.constant(["two", "three"])})["y"], [2, -1])
