"""connect(): imports several pre-trained graphs into one, each in its scope, with its own checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tensorflow as tf

from paramsync.errors import GraphError, ParameterError
from paramsync.graphs.surgery.arguments import (
    check_graph,
    check_scope,
    check_session,
    checked_device,
    checked_mapping,
    checked_names,
    similar,
)
from paramsync.graphs.surgery.arguments import placeholders as placeholders_of
from paramsync.graphs.surgery.duplicate import Copy, duplicate
from paramsync.graphs.surgery.replacing import stand_in
from paramsync.graphs.surgery.selection import required
from paramsync.graphs.surgery.sources import ImportedGraph, source_of
from paramsync.graphs.surgery.variables import for_saver, saved
from paramsync.host.files import shown

Named = tuple[int, tf.Tensor]
"""A tensor, and which source it is of."""


@dataclass(frozen=True, slots=True)
class Connected:
    """Several graphs in one. Inputs and outputs are called scope/name; `copies`, `savers` go by scope."""

    graph: tf.Graph
    inputs: Mapping[str, tf.Tensor]
    outputs: Mapping[str, tf.Tensor]
    copies: Mapping[str, Copy]
    savers: Mapping[str, tf.compat.v1.train.Saver]
    _checkpoints: Mapping[str, str] = field(repr=False)

    def initialise(self, session: tf.compat.v1.Session) -> None:
        """Restore each scope that has a checkpoint, and initialise what has no value then, as an optimizer's slots."""
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
    """Import graphs, each with its checkpoint or None, and read an earlier one's outputs as a later one's inputs.

    A source is a `.meta` file, a MetaGraphDef, a tf.Graph or a Graph. `inputs` maps input to output, by the names these
    have in their graphs, or with the scope before them: graph1, graph2 and so on, or those of `scopes`. An input may
    also read a tensor, of a live source or of the graph that all goes to, or take an array for its value. The outputs
    are those named, or else those of the sources that no other one reads. Only what leads to them is imported. Their
    placeholders are inputs, and so are the tensors named in `placeholders`, input pipelines for example.

    Everything goes to `graph`, or the default graph, and runs on `device`: anywhere if that is "", or where its sources
    say. Raises GraphError where a name is unknown or does not say which graph it is of, and ParameterError where a
    checkpoint lacks a variable or has it with another shape or dtype. Nothing is added to a graph then.
    """
    _check_pairs(sources)
    inputs = checked_mapping(inputs, "inputs", "what is read by the name of an input")
    placeholders = checked_names(placeholders, "placeholders")
    outputs = None if outputs is None else checked_names(outputs, "outputs")
    device = checked_device(device)
    target = tf.compat.v1.get_default_graph() if graph is None else graph
    check_graph(target)
    graphs = [source_of(source) for source, _ in sources]
    scopes = [f"graph{at}" for at in range(1, len(graphs) + 1)] if scopes is None else checked_names(scopes, "scopes")
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
            kept = saved(source.graph, variables)
            checkpoint.check({name: (variable, *source.saved_as(name, variable)) for name, variable in kept.items()})
        cuts.append((wanted, [*fed, *needed]))

    def build(graph: tf.Graph, fixed: Sequence[tuple[Named, Any]]) -> Connected:
        copies: list[Copy] = []
        for at, (wanted, fed) in enumerate(cuts):
            replace = {taker: copies[of][giver] for (into, taker), (of, giver) in joints if into == at}
            replace |= {taker: value for (into, taker), value in fixed if into == at}
            copies.append(
                duplicate(wanted, fed, scope=scopes[at], replace=replace, keep_seeds=True, graph=graph, device=device)
            )
        return _connected(graph, names, copies, checkpoints, ends, [fed for _, fed in cuts])

    with tf.Graph().as_default() as aside:  # what fails there adds nothing to the target
        build(aside, [(taker, stand_in(value, "given") if _is_of(target, value) else value) for taker, value in fixed])
    return build(target, fixed)


def _is_of(graph: tf.Graph, value: Any) -> bool:
    return isinstance(value, tf.Tensor | tf.Variable) and getattr(value, "graph", None) is graph


def _check_pairs(sources: Any) -> None:
    if not isinstance(sources, list | tuple) or not sources:
        raise GraphError(f"sources: expected a list of pairs of a graph and its checkpoint, found {shown(sources)}")
    for pair in sources:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise GraphError(f"sources: expected pairs of a graph and its checkpoint, or None, found {shown(pair)}")
        if pair[1] is not None and not isinstance(pair[1], str | Path):
            raise GraphError(f"sources: expected the path of a checkpoint, or None, found {shown(pair[1])}")


def _connected(
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
            name: variable for name, variable in kept.items() if checkpoint is None or keys[name] in checkpoint.keys
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
    """Which tensor of which source a name means. Raises GraphError where that is none, or not just one."""

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
        """Whether this is meant to be a tensor of a source: a name, or a tensor of its graph."""
        graph = getattr(value, "graph", None) if isinstance(value, tf.Tensor) else None
        return isinstance(value, str) or any(source.graph is graph for source in self.sources)

    def joint(self, taker: str, giver: str | tf.Tensor) -> tuple[Named, Named]:
        """The input and the output that it reads, of an earlier source."""
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
        if not isinstance(name, str):
            raise GraphError(f"{what}: expected the names of tensors, found {shown(name)}")
        tensors = []
        for at, (scope, source) in enumerate(zip(self._scopes, self.sources, strict=True)):
            tensor = source.tensor(name)
            if tensor is None and name.startswith(f"{scope}/"):
                tensor = source.tensor(name.removeprefix(f"{scope}/"))
            if tensor is not None:
                tensors.append((at, tensor))
        if not tensors:
            listed = "; ".join(
                f"{scope}: {placeholders_of(source.graph)}{similar(source.graph, name.removeprefix(f'{scope}/'))}"
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
        self._shapes = reader.get_variable_to_shape_map()
        self._dtypes = reader.get_variable_to_dtype_map()

    @property
    def keys(self) -> frozenset[str]:
        return frozenset(self._shapes)

    def check(self, variables: Mapping[str, tuple[tf.Variable, str, tf.TensorShape]]) -> None:
        """Raise ParameterError where it lacks one of these, given with their keys and shapes, or has another kind."""
        missing = sorted({key for _, key, _ in variables.values()} - self.keys)
        if missing:
            raise ParameterError(f"checkpoint {self.path}", expected=_listed(missing), found=_listed(sorted(self.keys)))
        for variable, key, shape in variables.values():
            dtype = variable.dtype.base_dtype
            if self._dtypes[key] != dtype or not shape.is_compatible_with(self._shapes[key]):
                raise ParameterError(
                    f"checkpoint {self.path}, {key!r}",
                    expected=f"{dtype.name} {shape}",
                    found=f"{self._dtypes[key].name} {tf.TensorShape(self._shapes[key])}",
                )


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


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
