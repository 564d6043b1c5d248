"""The tensors of a checkpoint: what each is called there, its bytes, and the entry that says where they are."""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from paramsync import dtypes
from paramsync.dtypes import Array
from paramsync.errors import ParameterError
from paramsync.host import files
from paramsync.tensorbundle import strings
from paramsync.tensorbundle.checksums import mask
from paramsync.tensorbundle.index import Entry


class Dlpack(Protocol):
    """What can be exchanged through DLPack."""

    def __dlpack__(self) -> Any: ...

    def __dlpack_device__(self) -> Any: ...


Tensor: TypeAlias = npt.ArrayLike | Dlpack


def key_of(name: object) -> bytes:
    """What a checkpoint lists a tensor under, and sorts it by."""
    key = name.encode(errors="replace") if isinstance(name, str) else b""
    if not key or key[0] == 0 or key.decode() != name:  # the keys of the header and of slices; lone surrogates
        expected = "names in UTF-8 that are neither empty nor begin with NUL"
        raise ParameterError("a checkpoint", expected=expected, found=files.shown(name))
    return key


class Source:
    """A tensor to be written."""

    def __init__(self, name: str, tensor: Tensor) -> None:
        array = _array(tensor, name)
        dtype = dtypes.from_numpy(array.dtype)
        if dtype is None:
            expected = "a dtype of TensorFlow's in little-endian order"
            raise ParameterError(files.shown(name), expected=expected, found=array.dtype)
        self._array = array
        self._shape = array.shape
        self._dtype = dtype
        self._checksum: int | None = None
        if dtype == dtypes.STRING:
            encoded, self._checksum = strings.encode(array, name)
            self._array = np.frombuffer(encoded, np.uint8)
        self.size: int = self._array.nbytes

    def let_go(self) -> None:
        """Its content is in a file: the entry is all that is still asked for."""
        self._array = np.empty(0, np.uint8)

    def content(self) -> Array:
        """The bytes, row by row; the tensor's own where it has them so."""
        return np.ascontiguousarray(self._array).reshape(-1).view(np.uint8)

    @property
    def numbers(self) -> np.dtype[np.generic] | None:
        """The dtype of numbers that may be NaN or infinite; None for other values."""
        return self._array.dtype if self._array.dtype.kind in "fcV" else None

    def entry(self, shard: int, offset: int, checksum: int) -> Entry:
        stored = checksum if self._checksum is None else self._checksum
        return Entry(self._dtype, self._shape, shard, offset, self.size, mask(stored))

    def is_like(self, entry: Entry | None) -> bool:
        """Whether that is the entry of a tensor of the same dtype, shape and size."""
        if entry is None:
            return False
        return entry.shape == self._shape and entry.dtype == self._dtype and entry.size == self.size


def _array(tensor: Any, name: str) -> Array:
    if isinstance(tensor, np.ndarray):
        return tensor
    try:
        if hasattr(tensor, "__dlpack__") and not hasattr(tensor, "__array__"):
            return np.from_dlpack(tensor)
        return np.asarray(tensor)
    except Exception as error:
        found = f"{type(tensor).__name__}: {' '.join(str(error).split()) or type(error).__name__}"
        raise ParameterError(files.shown(name), expected="an array", found=found) from error
