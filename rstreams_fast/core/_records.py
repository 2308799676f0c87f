"""Code that the ``RecordRing`` classes of all backends share: the dtype, and checks of arrays.

This module imports numpy only when the first ring is made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from rstreams_fast._checks import check_count, check_timeout, safe_repr
from rstreams_fast._third_parties import numpy_for

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "ALIGNMENT",
    "COPY_UNDER_GIL",
    "Records",
    "aput_all",
    "beyond_region",
    "check_most",
    "check_wanted",
    "put_all",
    "view_alive",
]

ALIGNMENT: Final = 64
"""The alignment of a ring's memory, in bytes: a cache line, which suits every dtype."""

COPY_UNDER_GIL: Final = 1 << 16
"""A copy of at least this many bytes releases the GIL. For fewer bytes, that would be too slow."""


class Records:
    """The dtype of a ring's records, and checks of arrays that are copied into or out of a ring."""

    __slots__ = ("_base", "_capacity", "_shape", "dtype", "itemsize", "numpy")

    def __init__(self, dtype: Any, capacity: int) -> None:
        self.numpy: Any = numpy_for("a RecordRing")
        self.dtype: np.dtype[Any] = check_dtype(self.numpy, dtype)
        self.itemsize: int = self.dtype.itemsize
        # If ``dtype`` is a sub-array dtype, numpy makes arrays of _base, and appends _shape to
        # their shape. Otherwise _base is ``dtype``, and _shape is empty.
        self._base = self.dtype.base
        self._shape = self.dtype.shape
        self._capacity = capacity

    def source(self, array: Any) -> np.ndarray[Any, Any]:
        """Check ``array``, and return an array whose records can be copied into the ring.

        If ``array`` is not contiguous, return a contiguous copy of it. The copy has no more records
        than the ring's capacity.
        """
        plain = self.check(array)
        if not plain.flags.c_contiguous:
            plain = self.numpy.ascontiguousarray(plain[: self._capacity])
        return plain

    def target(self, array: Any) -> np.ndarray[Any, Any]:
        """Check that records can be copied into ``array``, and return it as a plain ndarray."""
        plain = self.check(array)
        if not plain.flags.c_contiguous:
            raise ValueError("array must be contiguous: records are copied into one piece of it")
        if not plain.flags.writeable:
            raise ValueError("array must be writable: it is read-only")
        return plain

    def empty(self, n: int) -> np.ndarray[Any, Any]:
        """Return a new, uninitialised array of ``n`` records."""
        return self.numpy.empty(n, self.dtype)  # type: ignore[no-any-return]

    def nothing(self, readonly: bool) -> np.ndarray[Any, Any]:
        """Return an array of 0 records, for a ``reserve`` or ``peek`` that finds nothing."""
        nothing = self.empty(0)
        nothing.flags.writeable = not readonly
        return nothing

    def view(self, memory: memoryview) -> np.ndarray[Any, Any]:
        """Return the records in ``memory`` as an array that keeps the memory alive."""
        return self.numpy.frombuffer(memory, self.dtype)  # type: ignore[no-any-return]

    def describe(self, ring: str) -> str:
        """Return ``ring``, the ``repr`` of a ring, with the dtype added."""
        return f"{ring[:-1]} of {self.dtype}>"

    def check(self, array: Any) -> np.ndarray[Any, Any]:
        """Return ``array`` as a plain ndarray. Raise an error if its dtype or shape is wrong."""
        numpy = self.numpy
        if not isinstance(array, numpy.ndarray):
            raise TypeError(
                f"array must be a numpy array of dtype {self._base}, got {type(array).__name__}"
            )
        if type(array) is not numpy.ndarray and isinstance(array, numpy.ma.MaskedArray):
            raise TypeError("array must not be a masked array: its mask would be lost")
        # Check the dtype and shape of a plain ndarray: a subclass may report wrong values.
        plain: np.ndarray[Any, Any] = numpy.asarray(array)
        if plain.dtype != self._base:
            raise TypeError(f"array must have the dtype {self._base}, got {plain.dtype}")
        shape = plain.shape
        if not shape or shape[1:] != self._shape:
            wanted = ", ".join(["n", *map(str, self._shape)])
            raise ValueError(f"array must have the shape ({wanted}), got {shape}")
        return plain


def check_dtype(numpy: Any, dtype: Any) -> Any:
    """Return ``dtype`` as a numpy dtype. Raises an error if it contains objects or has 0 bytes."""
    if dtype is None:  # numpy.dtype(None) would be float64
        raise TypeError("dtype must be a numpy dtype, got None")
    checked = numpy.dtype(dtype)
    if checked.hasobject:
        field = _object_field(checked)
        where = f"its field {field!r} holds" if field else "it holds"
        raise TypeError(f"dtype must be plain data, and {where} Python objects: {checked}")
    if checked.itemsize == 0:
        raise ValueError(f"dtype must have a size, and {checked!r} has 0 bytes")
    return checked


def _object_field(dtype: Any) -> str:
    """Return the path of the first field with Python objects, such as ``"a.b"``.

    Return ``""`` if ``dtype`` has no fields: then it is itself the type of Python objects.
    """
    dtype = dtype.base
    for name in dtype.names or ():
        inner = dtype.fields[name][0]
        if inner.hasobject:
            below = _object_field(inner)
            return f"{name}.{below}" if below else str(name)
    return ""


def check_most(max: object) -> int | None:
    """Return ``max``, the largest number of records to take: 0 or more, or ``None`` for all.

    Raises an error for other values.
    """
    return None if max is None else check_count("max", max)


def check_wanted(max: object) -> int | None:
    """Return ``max``, the largest number of records to take: 1 or more, or ``None`` for all.

    Raises an error for other values. 0 is wrong, because the caller first waits for a record.
    """
    return None if max is None else check_count("max", max, 1)


def view_alive(call: str, region: str) -> BufferError:
    """Return the error for a call that the ring refuses while a view of its memory exists.

    Args:
        call: The name of the call.
        region: ``"reserved"`` if ``reserve`` has returned the view, ``"peeked"`` if ``peek`` has.
    """
    return BufferError(
        f"{call} while a view of the {region} records lives: "
        "delete it first, and every array made from it"
    )


def beyond_region(call: str, n: int, region: str, count: int) -> ValueError:
    """Return the error for a ``commit`` or ``release`` of more records than the last view had.

    Args:
        call: The name of the call, ``"commit"`` or ``"release"``.
        n: The argument of the call.
        region: ``"reserved"`` for ``commit``, ``"peeked"`` for ``release``.
        count: The number of records in the view that ``reserve`` or ``peek`` returned last.
    """
    return ValueError(
        f"{call}(n): n must be <= {count}, as many as are {region}, got {safe_repr(n)}"
    )


def put_all(
    records: Records,
    put: Callable[[Any, float | None], int],
    array: np.ndarray[Any, Any],
    timeout: float | None,
) -> None:
    """Put all records of ``array`` into a ring, by calling ``put`` as often as needed."""
    plain = records.check(array)
    timeout = check_timeout(timeout)
    until = math.inf if timeout is None else monotonic() + timeout
    done = put(plain, timeout)
    while done < len(plain):
        left = None if timeout is None else max(until - monotonic(), 0)
        try:
            done += put(plain[done:], left)
        except BaseException as raised:
            raised.add_note(f"put: {done} of {len(plain)} records were put in")
            raise


async def aput_all(
    records: Records,
    aput: Callable[[Any], Coroutine[Any, Any, int]],
    array: np.ndarray[Any, Any],
) -> None:
    """Put all records of ``array`` into a ring, by calling ``aput`` as often as needed."""
    plain = records.check(array)
    done = await aput(plain)
    while done < len(plain):
        try:
            done += await aput(plain[done:])
        except BaseException as raised:
            raised.add_note(f"aput: {done} of {len(plain)} records were put in")
            raise
