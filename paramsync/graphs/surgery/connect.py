"""connect(): imports several pre-trained graphs into one graph, each into its own scope with its own checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tensorflow as tf

from paramsync.errors import GraphError
from paramsync.graphs.specs import TensorSpec, check
from paramsync.graphs.surgery.arguments import check_graph, check_scope, check_session, hint, normalise_device
from paramsync.graphs.surgery.duplicate import Copy, duplicate
from paramsync.graphs.surgery.replacing import stand_in
from paramsync.graphs.surgery.selection import required
from paramsync.graphs.surgery.sources import ImportedGraph, source_of
from paramsync.graphs.surgery.variables import for_saver, saved, sizes

Named = tuple[int, tf.Tensor]
"""The position of a source, and one of its tensors."""


@dataclass(frozen=True, slots=True)
class Connected:
    """Several graphs in one. Keys of inputs and outputs are scope/name; keys of `copies` and `savers` are scopes."""

    graph: tf.Graph
    inputs: Mapping[str, tf.Tensor]
    outputs: Mapping[str, tf.Tensor]
    copies: Mapping[str, Copy]
    savers: Mapping[str, tf.compat.v1.train.Saver]
    _checkpoints: Mapping[str, str] = field(repr=False)

    def initialise(self, session: tf.compat.v1.Session) -> None:
        """Restore each scope that has a checkpoint, then initialise all other variables, and the tables."""
        check_session(session, self.graph, "session")
        for scope, checkpoint in self._checkpoints.items():
            self.savers[scope].restore(session, checkpoint)
        with self.graph.as_default():
            v1 = tf.compat.v1
            copied = (variable for copy in self.copies.values() for variable in copy.variables.values())
            every = {
                variable.op.name: variable for variable in (*v1.global_variables(), *v1.local_variables(), *copied)
            }
            initialisers = {name: variable.initializer for name, variable in every.items()}
            empty = session.run(v1.report_uninitialized_variables(list(every.values())))
            session.run([[initialisers[name.decode()] for name in empty], v1.tables_initializer()])


def connect(
    sources: Sequence[tuple[Any, str | Path | None]],
    inputs: Mapping[str, Any] | None = None,
    *,
    scopes: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
    placeholders: Sequence[str] = (),
    graph: tf.Graph | None = None,
    device: str | None = None,
) -> Connected:
    """Import graphs, and feed outputs of earlier graphs to inputs of later graphs.

    Args:
        sources: Pairs of a source and its checkpoint (None: no checkpoint). A source is a `.meta` file, a MetaGraphDef,
            a tf.Graph or a Graph.
        inputs: Maps the name of an input to the value that it reads: the name of an output of an earlier source, a
            tensor of a live source or of the target graph, or an array. A scope and a slash before a name select a
            source.
        scopes: The scope of each source; by default graph1, graph2 and so on.
        outputs: Names of the outputs. Only operations that the outputs need are imported, and placeholders among them
            become inputs. By default, each source that no other source reads gives the outputs of all its signatures.
        placeholders: Names of tensors that become inputs too, such as the tensors of an input pipeline.
        graph: The target graph; by default the default graph.
        device: The device of all operations, "" for any; by default the devices of the sources.

    Raises GraphError for an unknown or ambiguous name, and ParameterError for a checkpoint that lacks a variable, or
    has it with another shape or dtype. An error leaves the target graph unchanged.
    """
    if not sources:
        raise GraphError("sources: expected a list of pairs of a graph and its checkpoint, found none")
    inputs = inputs or {}
    device = normalise_device(device)
    target = tf.compat.v1.get_default_graph() if graph is None else graph
    check_graph(target)
    graphs = [source_of(source) for source, _ in sources]
    scopes = [f"graph{at}" for at in range(1, len(graphs) + 1)] if scopes is None else list(scopes)
    for scope in scopes:
        check_scope(scope, "scopes")
    if len(scopes) != len(graphs) or len({scope.lower() for scope in scopes}) != len(scopes):
        raise GraphError(f"scopes: expected a scope for each of {len(graphs)} graphs to connect, found {scopes}")
    names = _Names(graphs, scopes)
    joints = [names.joint(taker, giver) for taker, giver in inputs.items() if names.is_giver(giver)]
    fixed = [(names.tensor(taker, "inputs"), value) for taker, value in inputs.items() if not names.is_giver(value)]
    ends = _ends(names, joints, outputs)
    opened = [names.tensor(name, "placeholders") for name in placeholders]
    checkpoints = [None if path is None else _Checkpoint(path) for _, path in sources]
    cuts = []
    for at, (source, checkpoint) in enumerate(zip(graphs, checkpoints, strict=True)):
        wanted = _of(at, [*ends, *(giver for _, giver in joints)])
        if not wanted:
            raise GraphError(f"outputs: nothing of {scopes[at]} leads to them, and no input reads an output of it")
        joined, fed = _of(at, [taker for taker, _ in (*joints, *fixed)]), _of(at, opened)
        needed, variables = required(source.graph, wanted, {tensor.name for tensor in (*joined, *fed)})
        if checkpoint:
            checkpoint.check(source, saved(source.graph, variables))
        cuts.append((wanted, [*fed, *needed]))

    def build(graph: tf.Graph, fixed: Sequence[tuple[Named, Any]]) -> Connected:
        copies: list[Copy] = []
        for at, (wanted, fed) in enumerate(cuts):
            replace = {taker: copies[of][giver] for (into, taker), (of, giver) in joints if into == at}
            replace |= {taker: value for (into, taker), value in fixed if into == at}
            copies.append(
                duplicate(wanted, fed, scope=scopes[at], replace=replace, keep_seeds=True, graph=graph, device=device)
            )
        return _put_together(graph, names, copies, checkpoints, ends, [fed for _, fed in cuts])

    with tf.Graph().as_default() as aside:  # a rehearsal: a failure adds nothing to the target
        stand_ins = [
            (taker, stand_in(value, "given") if getattr(value, "graph", None) is target else value)
            for taker, value in fixed
        ]
        build(aside, stand_ins)
    return build(target, fixed)


def _put_together(
    target: tf.Graph,
    names: _Names,
    copies: Sequence[Copy],
    checkpoints: Sequence[_Checkpoint | None],
    ends: Sequence[Named],
    fed: Sequence[Sequence[tf.Tensor]],
) -> Connected:
    savers, restored = {}, {}
    for source, copy, checkpoint in zip(names.sources, copies, checkpoints, strict=True):
        keys = {name: source.saved_as(name, variable)[0] for name, variable in copy.originals.items()}
        kept = saved(target, copy.variables)
        restorable = {
            name: variable for name, variable in kept.items() if checkpoint is None or keys[name] in checkpoint.entries
        }
        if restorable:
            with target.as_default():
                savers[copy.scope] = tf.compat.v1.train.Saver(for_saver(restorable, keys), name=f"{copy.scope}/save")
            if checkpoint:
                restored[copy.scope] = checkpoint.path
    return Connected(
        graph=target,
        inputs={
            f"{copy.scope}/{source.label(tensor)}": copy[tensor]
            for source, copy, tensors in zip(names.sources, copies, fed, strict=True)
            for tensor in tensors
        },
        outputs={f"{copies[at].scope}/{names.sources[at].label(end)}": copies[at][end] for at, end in ends},
        copies={copy.scope: copy for copy in copies},
        savers=savers,
        _checkpoints=restored,
    )


class _Names:
    """Finds the tensors that names mean. Raises GraphError for an unknown or ambiguous name."""

    def __init__(self, sources: Sequence[ImportedGraph], scopes: Sequence[str]) -> None:
        self.sources = sources
        self._scopes = scopes

    def tensor(self, name: str, what: str) -> Named:
        tensors = self._all(name, what)
        if len(tensors) > 1:
            spelled = " or ".join(f"{self._scopes[at]}/{name}" for at, _ in tensors)
            raise GraphError(f"{what}: {name!r} is a tensor of several graphs: say {spelled}")
        return tensors[0]

    def is_giver(self, value: Any) -> bool:
        """Return whether an input can read this value from a source: a tensor of a source, or a name."""
        graph = getattr(value, "graph", None) if isinstance(value, tf.Tensor) else None
        return isinstance(value, str) or any(source.graph is graph for source in self.sources)

    def joint(self, taker: str, giver: str | tf.Tensor) -> tuple[Named, Named]:
        """Return the input that `taker` names, and the output of an earlier source that `giver` is or names."""
        if isinstance(giver, str):
            givers = self._all(giver, "inputs")
        else:
            givers = [(at, giver) for at, source in enumerate(self.sources) if source.graph is giver.graph]
            giver = giver.name
        pairs = [(into, of) for into in self._all(taker, "inputs") for of in givers if of[0] < into[0]]
        if len(pairs) != 1:
            order = ", ".join(self._scopes)
            what = "not of a graph before it" if not pairs else "so in several ways: put the scope before the names"
            raise GraphError(
                f"inputs: {taker!r} cannot read {giver!r}: that is {what}; the graphs, in their order: {order}"
            )
        return pairs[0]

    def _all(self, name: str, what: str) -> list[Named]:
        tensors = []
        for at, (scope, source) in enumerate(zip(self._scopes, self.sources, strict=True)):
            tensor = source.tensor(name)
            if tensor is None and name.startswith(f"{scope}/"):
                tensor = source.tensor(name.removeprefix(f"{scope}/"))
            if tensor is not None:
                tensors.append((at, tensor))
        if not tensors:
            listed = "; ".join(
                f"{scope}: {hint(source.graph, name.removeprefix(f'{scope}/'))}"
                for scope, source in zip(self._scopes, self.sources, strict=True)
            )
            raise GraphError(f"{what}: no graph has a tensor {name!r}; their placeholders: {listed}")
        return tensors


class _Checkpoint:
    """The names, dtypes and shapes in a checkpoint, given by its prefix or its directory."""

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)
        if Path(path).is_dir():
            self.path = tf.train.latest_checkpoint(str(path)) or self.path
        try:
            reader = tf.train.load_checkpoint(self.path)
        except (tf.errors.OpError, ValueError) as error:
            raise GraphError(f"the checkpoint {self.path} cannot be read: {error}") from error
        shapes = reader.get_variable_to_shape_map()
        self.entries = {key: (dtype, shapes[key]) for key, dtype in reader.get_variable_to_dtype_map().items()}

    def check(self, source: ImportedGraph, variables: Mapping[str, tf.Variable]) -> None:
        """Raise ParameterError if the checkpoint lacks a variable, or has it with another dtype or shape."""
        specs = {}
        for name, variable in variables.items():
            key, shape = source.saved_as(name, variable)
            specs[key] = TensorSpec(key, variable.dtype.base_dtype.name, sizes(shape))
        check(list(specs.values()), self.entries, lambda one: (one[0].name, one[1]), where=f"checkpoint {self.path}")


def _ends(names: _Names, joints: Sequence[tuple[Named, Named]], outputs: Sequence[str] | None) -> list[Named]:
    if outputs is not None:
        return [names.tensor(end, "outputs") for end in outputs]
    read = {of for _, (of, _) in joints}
    ends = [(at, end) for at, source in enumerate(names.sources) if at not in read for end in source.ends()]
    if not ends:
        raise GraphError("outputs: the graphs do not say what theirs are: name them (outputs=[...])")
    return ends


def _of(at: int, tensors: Sequence[Named]) -> list[tf.Tensor]:
    return list({tensor.name: tensor for source, tensor in tensors if source == at}.values())
