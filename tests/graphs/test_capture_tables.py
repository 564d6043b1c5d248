"""Lookup tables travel with the graph that looks into them, from live models and from SavedModels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from paramsync.errors import GraphError
from paramsync.graphs.capturing import capture
from paramsync.graphs.graph import Graph
from tests.support.captured import answers, saved_parameters


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
