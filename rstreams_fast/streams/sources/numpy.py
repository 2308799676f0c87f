"""``from_numpy``: a source whose elements are parts of one numpy array."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rstreams_fast._checks import check_count
from rstreams_fast._third_parties import numpy_for
from rstreams_fast.streams.engine.pull_source import CountedIterator

if TYPE_CHECKING:
    import numpy as np

__all__ = ["ArraySource", "array_source"]


def array_source(array: np.ndarray[Any, Any], chunk: int) -> ArraySource:
    np = numpy_for("from_numpy")
    if not isinstance(array, np.ndarray):
        raise TypeError(f"array must be a numpy array, got {type(array).__name__}")
    if array.ndim == 0:
        raise ValueError("array must have at least one dimension")
    return ArraySource(array, check_count("chunk", chunk, 1))


class ArraySource:
    is_sequence: Final = True

    def __init__(self, array: np.ndarray[Any, Any], chunk: int) -> None:
        self._array = array
        self._chunk = chunk

    def open(self) -> _ChunkIterator:
        return _ChunkIterator(self._array, self._chunk)

    def describe(self) -> str:
        return f"from_numpy({self._array.dtype} {self._array.shape}), {self._chunk} rows each"


class _ChunkIterator(CountedIterator):
    __slots__ = ("_array", "_at", "_chunk", "_rows")

    def __init__(self, array: np.ndarray[Any, Any], chunk: int) -> None:
        self._array = array
        self._chunk = chunk
        self._at = 0
        self._rows = len(array)

    def __next__(self) -> np.ndarray[Any, Any]:
        at = self._at
        if at >= self._rows:
            raise StopIteration
        self._at = at + self._chunk
        return self._array[at : self._at]

    def __length_hint__(self) -> int:
        return max(0, -((self._at - self._rows) // self._chunk))
