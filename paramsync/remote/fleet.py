"""Operators' choices for all followers of a bucket. Each is one compare-and-swap of the state, which followers read."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any, TypeVar

from paramsync.errors import EmptiedError, FencedError, RemoteError, UnknownLabelError, UnknownVersionError
from paramsync.moments import Move
from paramsync.remote import protocol
from paramsync.remote.bucket import Bucket, naming
from paramsync.remote.protocol import Steps
from paramsync.remote.state import State

_SECONDS = 30.0  # how long to wait for a bucket

T = TypeVar("T")
Choice = Callable[[State], Mapping[str, Any]]
"""Computes the new choices from the current state."""


def choose(address: str, choice: Choice) -> State:
    """Make a choice for all followers. Returns the state that contains it.

    Raises RemoteError, also if nothing is published at the address, and the errors of `choice`.
    """
    return perform(Bucket(address), protocol.choose(choice, secrets.token_hex(16)))


def preview(address: str, choice: Choice) -> State:
    """Return the state that a choice would make now. Changes nothing."""
    state = Bucket(address).state()
    return replace(state, choices=choice(state))


def perform(bucket: Bucket, steps: Steps[T]) -> T:
    """Run steps of the protocol for an operator's command, with a limit of time. Raises RemoteError, FencedError."""
    stop = threading.Event()
    timer = threading.Timer(_SECONDS, stop.set)
    timer.start()
    try:
        return bucket.perform(steps, stop)
    except EmptiedError as error:
        raise RemoteError(f"nothing is published in {bucket.address}") from error
    except FencedError:
        raise
    except RemoteError as error:
        raise RemoteError(naming(bucket.address, error)) from error
    except (InterruptedError, ConnectionError) as error:
        raise RemoteError(f"{bucket.address} does not answer: {bucket.last_error}") from error
    finally:
        timer.cancel()


def pin(address: str, number: int | None, at: float | None = None) -> Choice:
    """Serve this version; None means the newest. With `at`, all followers change at this moment."""

    def choice(state: State) -> Mapping[str, Any]:
        if number is not None:
            _check(address, state, number)
        return _moved(state, number, at)

    return choice


def roll_back(address: str, at: float | None = None) -> Choice:
    """Serve the version before the pinned version, or before the newest if none is pinned."""

    def choice(state: State) -> Mapping[str, Any]:
        wanted = state.wanted
        before = [version.number for version in state.versions if wanted and version.number < wanted.number]
        if not before:
            raise RemoteError(f"{address}: there is no version to go back to")
        return _moved(state, before[-1], at)

    return choice


def sync(address: str, at: float) -> Choice:
    """Serve the version that is the newest now from this moment on, even if its own moment is later."""

    def choice(state: State) -> Mapping[str, Any]:
        if state.pinned is not None:
            raise RemoteError(f"{address}: all followers are pinned to version {state.pinned}: unpin them instead")
        return _moved(state, None, at, sync=True)

    return choice


def _moved(state: State, pinned: int | None, at: float | None, *, sync: bool = False) -> Mapping[str, Any]:
    """Return the choices with this pin. It applies from the moment `at`, or at once for None."""
    choices = {name: value for name, value in state.choices.items() if name != "move"} | {"pinned": pinned}
    if at is None:
        return choices
    newest = 0 if state.newest is None else state.newest.number
    return {**choices, "move": asdict(Move(at=at, before=state.pinned_at(time.time()), newest=newest, sync=sync))}


def label(address: str, name: str, number: int | None) -> Choice:
    """Give this version a label; None removes the label."""

    def choice(state: State) -> Mapping[str, Any]:
        if number is None and name not in state.labels:
            raise UnknownLabelError(address, name, state.labels)
        if number is not None:
            _check(address, state, number)
        labels = {**state.labels, **({} if number is None else {name: number})}
        if number is None:
            del labels[name]
        return {**state.choices, "labels": labels}

    return choice


def _check(address: str, state: State, number: int) -> None:
    """Raise UnknownVersionError for a version that the bucket does not list."""
    listed = [version.number for version in state.versions]
    if number not in listed:
        raise UnknownVersionError(address, number, listed)
