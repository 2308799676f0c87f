"""``to_numpy``: makes one numpy array of all elements of a stream."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from rstreams_fast._checks import safe_repr
from rstreams_fast._third_parties import numpy_for
from rstreams_fast.api import Publisher
from rstreams_fast.streams.sinks.collector import collect, collect_async

if TYPE_CHECKING:
    import numpy as np

__all__ = ["to_numpy", "to_numpy_async"]

FIRST_ROWS = 1024
"""The number of scalars that are converted together. Also the least number of rows of the result
array, after it was first enlarged."""


def to_numpy(publisher: Publisher[Any], *, dtype: Any = None) -> np.ndarray[Any, Any]:
    """Return all elements in one array: see ``Stream.to_numpy``."""
    collector = _ArrayCollector(numpy_for("to_numpy"), dtype)
    return collect("to_numpy", publisher, collector, in_lists=False)


async def to_numpy_async(publisher: Publisher[Any], *, dtype: Any = None) -> np.ndarray[Any, Any]:
    """Return the same array as ``to_numpy``, but await the end of the stream."""
    return await collect_async(publisher, _ArrayCollector(numpy_for("to_numpy_async"), dtype))


class _ArrayCollector:
    """Collects the elements of a stream in an array that grows.

    Scalars are first collected in a list, because numpy converts many scalars faster together.
    """

    def __init__(self, np: Any, dtype: Any) -> None:
        self._np = np
        self._dtype = None if dtype is None else np.dtype(dtype)
        self._rows: Any = None  # the array; the rows from ``_count`` on are not used yet
        self._count = 0
        self._scalars: list[Any] = []

    def add(self, element: Any) -> None:
        if isinstance(element, self._np.ndarray):
            if isinstance(element, self._np.ma.MaskedArray):
                raise TypeError(
                    "to_numpy: the mask of a masked array would be lost; "
                    "fill it before, with map(lambda array: array.filled(...))"
                )
            if element.ndim > 0:
                self._flush()
                self._append(element)
                return
        self._scalars.append(element)
        if len(self._scalars) >= FIRST_ROWS:
            self._flush()

    def add_all(self, elements: list[Any]) -> None:
        for element in elements:
            self.add(element)

    def result(self) -> np.ndarray[Any, Any]:
        self._flush()
        if self._rows is None:
            nothing: np.ndarray[Any, Any] = self._np.empty(0, self._dtype)
            return nothing
        if self._count < len(self._rows):
            # Free the memory of the unused rows, without a copy. No other object refers to the
            # array, so numpy need not check for other references (``refcheck``).
            self._rows.resize((self._count, *self._rows.shape[1:]), refcheck=False)
        rows: np.ndarray[Any, Any] = self._rows
        return rows

    def _flush(self) -> None:
        scalars, self._scalars = self._scalars, []
        if not scalars:
            return
        dtype = self._dtype
        # Do not give numpy the user's dtype: numpy might change values to fit it, such as 1.5 to 1.
        # Without the dtype, numpy makes floats or objects of such values, and the code below checks
        # them. But give numpy a dtype with fields: otherwise tuples become a two-dimensional array.
        array = self._np.array(scalars, dtype if dtype is not None and dtype.fields else None)
        if array.dtype.kind in "Mm" and len({getattr(x, "dtype", None) for x in scalars}) > 1:
            # Convert each date separately. If numpy converted all dates together, it would choose
            # one unit for all, and would not report a date that does not fit in the unit.
            for scalar in scalars:
                self._append(self._np.array([scalar], array.dtype.kind))
            return
        if dtype is not None and array.dtype != dtype and array.dtype.kind in "fO":
            array = self._convert_exactly(scalars, array, dtype)
        if array.ndim != 1:
            raise TypeError(
                f"to_numpy takes arrays or scalars, got {type(scalars[0]).__name__}; "
                "make arrays of such elements with map(numpy.asarray)"
            )
        if array.dtype.hasobject and dtype is None:
            odd = next((x for x in scalars if self._np.asarray(x).dtype.hasobject), scalars[0])
            if isinstance(odd, int):
                raise OverflowError(
                    f"to_numpy: {safe_repr(odd):.60} has more than 64 bits; give dtype=float, "
                    "which loses precision, or dtype=object"
                )
            raise TypeError(
                f"to_numpy takes arrays or scalars, got {type(odd).__name__} {odd!r:.60}"
            )
        self._append(array)

    def _convert_exactly(self, scalars: list[Any], array: Any, dtype: Any) -> Any:
        """Return an array of ``scalars``. Raise an error if a value does not fit in ``dtype``.

        ``array`` is the result of ``numpy.array(scalars)``, converted without ``dtype``. The
        returned array may still have another dtype. ``_append`` casts it to ``dtype``.
        """
        np = self._np
        if dtype.kind in "iu" and all(isinstance(x, int | np.integer) for x in scalars):
            _check_range(np, dtype, min(scalars), max(scalars))
            return np.array(scalars, dtype)
        if not array.dtype.hasobject:
            return array
        if dtype.kind in "SUMm":
            # With only ``dtype.kind``, numpy chooses a text length or a unit that cuts no value.
            return np.array(scalars, dtype.kind)
        try:
            array = np.array(scalars, np.result_type(dtype, "f8") if dtype.kind in "fc" else dtype)
        except OverflowError as raised:
            raise OverflowError(f"to_numpy(dtype={dtype}): {raised}") from raised
        if dtype.kind in "biufc" and array.ndim == 1:
            integral = dtype.kind in "biu"
            for before, after in zip(scalars, array.tolist(), strict=True):
                if (integral or abs(after) == math.inf) and before != after:
                    raise _fit_error(dtype, before)
        return array

    def _append(self, array: Any) -> None:
        np, rows, count, given = self._np, self._rows, self._count, self._dtype
        if given is None or array.dtype == given:
            unsafe = False
        elif np.can_cast(array.dtype, given, "same_kind") or (
            array.dtype.kind in "iu" and given.kind in "iu"
        ):
            # A cast of dates to a finer unit, such as days to seconds, can overflow. np.can_cast
            # calls this cast safe. So casts of dates are always checked.
            unsafe = given.kind in "Mm" or not np.can_cast(array.dtype, given, "safe")
        else:
            raise TypeError(f"to_numpy(dtype={given}): cannot cast {array.dtype} to it")
        dtype = array.dtype if given is None else given
        promoted = given is None
        if dtype.kind in "SU" and not dtype.itemsize:  # the user's dtype has no text length
            array = array.astype(dtype)
            dtype, unsafe, promoted = array.dtype, False, True
        end = count + len(array)
        if rows is None:
            rows = np.empty((end, *array.shape[1:]), dtype)
        elif array.shape[1:] != rows.shape[1:]:
            raise ValueError(
                f"arrays must agree in all dimensions but the first: {rows.shape[1:]} came first, "
                f"then {array.shape[1:]}"
            )
        else:
            if promoted and dtype != rows.dtype:
                dtype = np.result_type(rows.dtype, dtype)
                unsafe = dtype.kind in "MmV"  # dates may not fit in a finer unit: check the cast
            room = len(rows) if end <= len(rows) else max(end, 2 * len(rows), FIRST_ROWS)
            if room != len(rows) or dtype != rows.dtype:
                grown = np.empty((room, *rows.shape[1:]), dtype)
                _copy(np, rows[:count], grown[:count], unsafe and dtype != rows.dtype)
                rows = grown
        _copy(np, array, rows[count:end], unsafe)
        self._rows, self._count = rows, end


def _copy(np: Any, array: Any, into: Any, unsafe: bool) -> None:
    """Copy the values of ``array`` to the array ``into``.

    ``unsafe`` means that ``array`` may contain values that do not fit in the dtype of ``into``. If
    ``unsafe`` is true, check each value, and raise an error for a value that does not fit.
    """
    if not unsafe:
        into[:] = array
        return
    with np.errstate(all="ignore"):
        try:
            into[:] = array
        except OverflowError as raised:
            # The error of numpy 2.5 does not say which date overflows. So look for the date.
            value = next(one for one in array.flat if _overflows(one, into.dtype))
            raise _fit_error(into.dtype, value) from raised
        _check_cast(np, array, into)


def _overflows(date: Any, dtype: Any) -> bool:
    try:
        date.astype(dtype)
    except OverflowError:
        return True
    return False


def _check_cast(np: Any, array: Any, cast: Any) -> None:
    """Raise an error if a value of ``array`` did not fit in the dtype of ``cast``.

    ``cast`` is the converted copy of ``array``. A loss of precision is not an error.
    """
    old, new = array.dtype, cast.dtype
    if new.names is not None:
        for at, name in enumerate(new.names):
            part = array if old.names is None else array[old.names[at]]
            _check_cast(np, part, cast[name])
        return
    if new.kind in "iu" or (new.kind == "m" and old.kind in "iu"):
        if old.kind in "iu" and array.size:
            _check_range(np, new, array.min(), array.max())
        return
    if new.kind in "fc":
        lost = np.isinf(cast)
        if lost.any():
            lost &= ~np.isinf(array)
    elif new.kind in "SU":
        array = array.astype(new.kind)
        lost = np.char.str_len(array) > new.itemsize // np.dtype(f"{new.kind}1").itemsize
    elif new.kind == "V" or (old.kind == new.kind and np.can_cast(old, new, "safe")):
        lost = (cast.astype(old) != array) & (array == array)  # noqa: PLR0124 - no NaT
    else:  # a cast of dates to a coarser unit, which loses only precision
        return
    if lost.any():
        raise _fit_error(new, array[lost][0])


def _check_range(np: Any, dtype: Any, *values: Any) -> None:
    duration = dtype.kind == "m"
    info = np.iinfo("i8" if duration else dtype)
    least = info.min + duration  # in durations (timedelta64) the smallest int64 means NaT
    for value in map(int, values):
        if not least <= value <= info.max:
            raise _fit_error(dtype, value)


def _fit_error(dtype: Any, value: Any) -> ValueError | OverflowError:
    if dtype.kind in "SUV" or (dtype.kind in "iub" and not isinstance(value, int)):
        return ValueError(f"to_numpy(dtype={dtype}): {safe_repr(value):.60} would be cut")
    return OverflowError(f"to_numpy(dtype={dtype}): {safe_repr(value):.60} does not fit")
