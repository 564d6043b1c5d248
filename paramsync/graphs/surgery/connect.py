"""connect(): several pre-trained graphs as one, each in its scope, with its own checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tensorflow as tf

from paramsync.errors import GraphError, ParameterError
from paramsync.graphs.surgery.duplicate import Copy, duplicate
from paramsync.graphs.surgery.naming import placeholders as placeholders_of
from paramsync.graphs.surgery.replacing import check_fit
from paramsync.graphs.surgery.selection import required
from paramsync.graphs.surgery.sources import Source, source_of
from paramsync.graphs.surgery.variables import for_saver

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
        for scope, checkpoint in self._checkpoints.items():
            self.savers[scope].restore(session, checkpoint)
        with self.graph.as_default():
            every = [*tf.compat.v1.global_variables(), *tf.compat.v1.local_variables()]
            initialisers = {one.op.name: one.initializer for one in every}
            empty = session.run(tf.compat.v1.report_uninitialized_variables(every))
            session.run([[initialisers[name.decode()] for name in empty], tf.compat.v1.tables_initializer()])


def connect(
    sources: Sequence[tuple[Any, str | Path | None]],
    inputs: Mapping[str, str] | None = None,
    *,
    scopes: Sequence[str] | None = None,
    outputs: Sequence[str] | None = None,
    placeholders: Sequence[str] = (),
    graph: tf.Graph | None = None,
    device: str | None = None,
) -> Connected:
    """Import graphs, each with its checkpoint or None, and read an earlier one's outputs as a later one's inputs.

    A source is a `.meta` file, a MetaGraphDef, a tf.Graph or a Graph. `inputs` maps input to output, by the names these
    have in their graphs, or with the scope before them: graph1, graph2 and so on, or those of `scopes`. The outputs are
    those named, or else those of the sources that no other one reads. Only what leads to them is imported. Their
    placeholders are inputs, and so are the tensors named in `placeholders`, input pipelines for example.

    Everything goes to `graph`, or the default graph. Raises GraphError where a name is unknown or does not say which
    graph it is of, and ParameterError where a checkpoint lacks a variable or has it with another shape or dtype.
    """
    for pair in sources:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise GraphError(f"expected pairs of a graph and its checkpoint, or None, found {pair!r}")
    found = [source_of(one) for one, _ in sources]
    scopes = [f"graph{at}" for at in range(1, len(found) + 1)] if scopes is None else list(scopes)
    if not found or len(scopes) != len(found) or len(set(scopes)) != len(scopes):
        raise GraphError(f"expected a scope for each of {len(found)} graphs to connect, found {scopes}")
    names = _Names(found, scopes)
    joints = [names.joint(taker, giver) for taker, giver in (inputs or {}).items()]
    for (_, taker_tensor), (_, giver_tensor) in joints:
        check_fit(taker_tensor, giver_tensor)
    ends = _ends(names, joints, outputs)
    opened = [names.one(one) for one in placeholders]
    checkpoints = [None if one is None else _Checkpoint(one) for _, one in sources]
    cuts = []
    for at, source in enumerate(found):
        wanted = _of(at, [*ends, *(giver for _, giver in joints)])
        joined, fed = _of(at, [taker for taker, _ in joints]), _of(at, opened)
        given = {one.name for one in [*joined, *fed]}
        others, variables = required(source.graph, wanted, given)
        checkpoint = checkpoints[at]
        if checkpoint:
            checkpoint.check({name: (one, *source.saved_as(name, one)) for name, one in variables.items()})
        cuts.append((wanted, [*fed, *others]))
    target = graph or tf.compat.v1.get_default_graph()
    copies: list[Copy] = []
    for at, (wanted, fed) in enumerate(cuts):
        replace = {taker: copies[of][giver] for (into, taker), (of, giver) in joints if into == at}
        copies.append(
            duplicate(wanted, fed, scope=scopes[at], replace=replace, keep_seeds=True, graph=target, device=device)
        )
    return _connected(target, names, copies, checkpoints, ends, [fed for _, fed in cuts])


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
        keys = {name: source.saved_as(name, one)[0] for name, one in copy.originals.items()}
        held = {
            name: one for name, one in copy.variables.items() if checkpoint is None or keys[name] in checkpoint.keys
        }
        if held:
            with target.as_default():
                savers[copy.scope] = tf.compat.v1.train.Saver(for_saver(held, keys), name=f"{copy.scope}/save")
            if checkpoint:
                restored[copy.scope] = checkpoint.path
    return Connected(
        graph=target,
        inputs={
            f"{copy.scope}/{source.label(one)}": copy[one]
            for source, copy, tensors in zip(names.sources, copies, fed, strict=True)
            for one in tensors
        },
        outputs={f"{copies[at].scope}/{names.sources[at].label(one)}": copies[at][one] for at, one in ends},
        copies={one.scope: one for one in copies},
        savers=savers,
        _checkpoints=restored,
    )


class _Names:
    """Which tensor of which source a name means. Raises GraphError where that is none, or not just one."""

    def __init__(self, sources: Sequence[Source], scopes: Sequence[str]) -> None:
        self.sources = sources
        self._scopes = scopes

    def one(self, name: str) -> Named:
        found = self._all(name)
        if len(found) > 1:
            spelled = " or ".join(f"{self._scopes[at]}/{name}" for at, _ in found)
            raise GraphError(f"{name!r} is a tensor of several graphs: say {spelled}")
        return found[0]

    def joint(self, taker: str, giver: str) -> tuple[Named, Named]:
        """The input and the output that it reads, of an earlier source."""
        pairs = [(into, of) for into in self._all(taker) for of in self._all(giver) if of[0] < into[0]]
        if len(pairs) != 1:
            order = ", ".join(self._scopes)
            what = "not of a graph before it" if not pairs else "so in several ways: put the scope before the names"
            raise GraphError(f"{taker!r} cannot read {giver!r}: that is {what}; the graphs, in their order: {order}")
        return pairs[0]

    def _all(self, name: str) -> list[Named]:
        found = []
        for at, (scope, source) in enumerate(zip(self._scopes, self.sources, strict=True)):
            tensor = source.tensor(name)
            if tensor is None and name.startswith(f"{scope}/"):
                tensor = source.tensor(name.removeprefix(f"{scope}/"))
            if tensor is not None:
                found.append((at, tensor))
        if not found:
            there = "; ".join(
                f"{scope}: {placeholders_of(source.graph)}"
                for scope, source in zip(self._scopes, self.sources, strict=True)
            )
            raise GraphError(f"no graph has a tensor {name!r}; their placeholders: {there}")
        return found


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
        return [names.one(one) for one in outputs]
    read = {of for _, (of, _) in joints}
    found = [(at, one) for at, source in enumerate(names.sources) if at not in read for one in source.ends()]
    if not found:
        raise GraphError("the graphs do not say what their outputs are: name them (outputs=[...])")
    return found


def _of(at: int, tensors: Sequence[Named]) -> list[tf.Tensor]:
    return list({one.name: one for of, one in tensors if of == at}.values())


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "")
