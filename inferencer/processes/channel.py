"""Channel: questions and answers between two processes of one server, over a UNIX socket that carries descriptors."""

from __future__ import annotations

import copyreg
import errno
import itertools
import os
import pickle
import socket
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from types import MappingProxyType
from typing import Any

from paramsync.errors import ParamsyncError

_HEAD = struct.Struct("=IHQ")  # number of bytes that follow, number of descriptors, number of the question
_QUESTION, _ANSWER, _ERROR, _NOTE = range(4)
_MOST_DESCRIPTORS = 250  # in one system call; the kernel allows 253
_SEND_SECONDS = 90.0  # a send fails if the other process reads nothing for so long


def _unchanging(values: dict[Any, Any]) -> MappingProxyType[Any, Any]:
    return MappingProxyType(values)


copyreg.pickle(MappingProxyType, lambda proxy: (_unchanging, (dict(proxy),)))  # such as the metrics of a version

Handler = Callable[..., Any]
"""A function that answers one kind of question. It gets the question's arguments and, if descriptors came with it, the
keyword `descriptors`; the function must close them. It returns the answer or a Future of the answer."""


class ClosedError(ParamsyncError):
    """The other process has ended or closed the connection."""


class Channel:
    """One end of a connection. Its thread answers the questions of the other end by `handlers`, one after another.

    Messages are pickled, because both ends are processes of the same server. Any thread may ask.
    """

    def __init__(self, connection: socket.socket, handlers: Mapping[str, Handler], *, name: str) -> None:
        self._socket = connection
        self._handlers = handlers
        self._name = name
        self._sending = threading.Lock()
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Future[Any]] = {}
        self._closed = False
        self.ended: Callable[[], None] = lambda: None
        """Called on the channel's thread once the other end is gone."""

    def start(self) -> None:
        threading.Thread(target=self.run, name=self._name, daemon=True).start()

    def ask(self, what: str, *arguments: Any, descriptors: Sequence[int] = ()) -> Future[Any]:
        """Send a question, and return a Future of its answer. The caller still owns the descriptors."""
        number, answer = next(self._numbers), Future[Any]()
        self._waiting[number] = answer
        try:
            self._send(_QUESTION, number, (what, arguments), descriptors)
        except OSError:
            self._settle(number, _ERROR, self._gone())
        if self._closed:
            self._settle(number, _ERROR, self._gone())
        return answer

    def tell(self, what: str, *arguments: Any) -> None:
        """Send a message that is not answered."""
        with suppress(OSError):
            self._send(_NOTE, 0, (what, arguments), ())

    def close(self) -> None:
        """Close the connection; `run` then returns at both ends."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def run(self) -> None:
        """Answer until the other process is gone."""
        try:
            while True:
                kind, number, message, descriptors = self._receive()
                if descriptors is None:
                    error = OSError(errno.EMFILE, f"{self._name}: no room for descriptors, see ulimit -n")
                    self._reply(kind, number, _ERROR, error)
                elif kind in (_ANSWER, _ERROR):
                    self._settle(number, kind, message)
                else:
                    self._handle(kind, number, message, descriptors)
        except (OSError, EOFError):
            pass
        finally:
            self._closed = True
            for number in list(self._waiting):
                self._settle(number, _ERROR, self._gone())
            self._socket.close()
            self.ended()

    def _gone(self) -> ClosedError:
        return ClosedError(f"{self._name}: the process is gone")

    def _settle(self, number: int, kind: int, message: Any) -> None:
        """Set the answer of a question, unless another thread has done so."""
        answer = self._waiting.pop(number, None)
        if answer is None:
            return
        with suppress(InvalidStateError):  # the caller cancelled the future
            if kind == _ANSWER:
                answer.set_result(message)
            else:
                answer.set_exception(message)

    def _handle(self, kind: int, number: int, message: tuple[str, tuple[Any, ...]], descriptors: list[int]) -> None:
        what, arguments = message
        files = {"descriptors": descriptors} if descriptors else {}
        try:
            answer = self._handlers[what](*arguments, **files)
        except Exception as error:  # noqa: BLE001, the error is the answer
            self._reply(kind, number, _ERROR, error)
            return
        if isinstance(answer, Future):
            answer.add_done_callback(lambda late: self._reply_late(kind, number, late))
        else:
            self._reply(kind, number, _ANSWER, answer)

    def _reply_late(self, kind: int, number: int, answer: Future[Any]) -> None:
        gone = ClosedError(f"{self._name}: the question was given up")
        error = gone if answer.cancelled() else answer.exception()
        self._reply(kind, number, _ANSWER if error is None else _ERROR, answer.result() if error is None else error)

    def _reply(self, question: int, number: int, kind: int, message: Any) -> None:
        if question == _NOTE:
            return
        with suppress(OSError):  # the other process is gone
            try:
                self._send(kind, number, message, ())
            except (pickle.PicklingError, TypeError, AttributeError):
                self._send(_ERROR, number, RuntimeError(str(message)), ())

    def _send(self, kind: int, number: int, message: Any, descriptors: Sequence[int]) -> None:
        """Send a message. Raises OSError. Closes the connection if the other process reads nothing for too long."""
        content = pickle.dumps((kind, message), pickle.HIGHEST_PROTOCOL)
        head = _HEAD.pack(len(content), len(descriptors), number)
        with self._sending:
            rest = memoryview(head)
            try:
                for at in range(0, len(descriptors), _MOST_DESCRIPTORS):  # each call needs a byte of content
                    socket.send_fds(self._socket, [rest[:1]], descriptors[at : at + _MOST_DESCRIPTORS])
                    rest = rest[1:]
                self._socket.sendall(rest)
                self._socket.sendall(content)
            except BlockingIOError:  # a part of the message may have been sent
                self.close()
                raise

    def _receive(self) -> tuple[int, int, Any, list[int] | None]:
        """Receive a message. Returns its kind, number, content and descriptors.

        The descriptors are None if this process may not open so many files.
        """
        head, descriptors = b"", list[int]()
        while len(head) < _HEAD.size:
            part, came, _, _ = socket.recv_fds(self._socket, _HEAD.size - len(head), _MOST_DESCRIPTORS)
            if not part:
                raise EOFError
            head += part
            descriptors += came
        size, count, number = _HEAD.unpack(head)
        is_whole = len(descriptors) == count
        if not is_whole:
            close_all(descriptors)
        content = bytearray(size)
        view = memoryview(content)
        while view:
            got = self._socket.recv_into(view)
            if not got:
                raise EOFError
            view = view[got:]
        kind, message = pickle.loads(content)
        return kind, number, message, descriptors if is_whole else None


def pair(*, send_seconds: float = _SEND_SECONDS) -> tuple[socket.socket, socket.socket]:
    """Return the two ends of a connection. A send fails if the other end reads nothing for `send_seconds`."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    seconds, rest = divmod(send_seconds, 1)
    for end in ends:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", int(seconds), int(rest * 1e6)))
    return ends


def close_all(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        with suppress(OSError):
            os.close(descriptor)
