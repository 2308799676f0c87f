"""The methods of ``Stream`` that subscribe: what comes out is no stream any more."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

from rstreams_fast._checks import check_sync
from rstreams_fast.api import UNBOUNDED
from rstreams_fast.core import MISSING
from rstreams_fast.runtime.parking import refuse_in_loop
from rstreams_fast.streams.engine.assembly import Stage
from rstreams_fast.streams.engine.defaults import PREFETCH
from rstreams_fast.streams.engine.pipeline import Pipeline
from rstreams_fast.streams.sinks import arrow, ends, numpy
from rstreams_fast.streams.sinks.iterate import Iteration, iterate

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from rstreams_fast.streams.sinks.ends import Run

__all__ = ["StreamEnds"]

T_co = TypeVar("T_co", covariant=True)
A = TypeVar("A")


class StreamEnds(Pipeline[T_co]):
    """The ends of ``Stream``."""

    __slots__ = ()

    def for_each(
        self,
        on_next: Callable[[T_co], object],
        on_error: Callable[[BaseException], object] | None = None,
        on_complete: Callable[[], object] | None = None,
        *,
        prefetch: int = UNBOUNDED,
    ) -> Run:
        """Subscribe functions. See :func:`~rstreams_fast.streams.sinks.ends.for_each`."""
        return ends.for_each(self, on_next, on_error, on_complete, prefetch=prefetch)

    def to_list(self) -> list[T_co]:
        """Wait for all elements. See :func:`~rstreams_fast.streams.sinks.ends.to_list`."""
        return ends.to_list(self)

    async def to_list_async(self) -> list[T_co]:
        """Await all elements. See :func:`~rstreams_fast.streams.sinks.ends.to_list_async`."""
        return await ends.to_list_async(self)

    @overload
    def first(self) -> T_co: ...

    @overload
    def first(self, default: A) -> T_co | A: ...

    def first(self, default: Any = MISSING) -> Any:
        """Wait for the first element. See :func:`~rstreams_fast.streams.sinks.ends.first`."""
        return ends.first(self._first_only(), default)

    @overload
    async def first_async(self) -> T_co: ...

    @overload
    async def first_async(self, default: A) -> T_co | A: ...

    async def first_async(self, default: Any = MISSING) -> Any:
        """Await the first element. See :func:`~rstreams_fast.streams.sinks.ends.first_async`."""
        return await ends.first_async(self._first_only(), default)

    @overload
    def last(self) -> T_co: ...

    @overload
    def last(self, default: A) -> T_co | A: ...

    def last(self, default: Any = MISSING) -> Any:
        """Wait for the end, and return the last element; of none, see ``first``."""
        return ends.last(self, default)

    @overload
    async def last_async(self) -> T_co: ...

    @overload
    async def last_async(self, default: A) -> T_co | A: ...

    async def last_async(self, default: Any = MISSING) -> Any:
        """Await the end, and return the last element; of none, see ``first``."""
        return await ends.first_async(self._through("reduce", _latter, MISSING), default)

    def count(self) -> int:
        """Wait for the end, and return the number of elements."""
        return int(_first("count", self._count()))

    async def count_async(self) -> int:
        """Await the end, and return the number of elements."""
        return await ends.first_async(self._count())

    def any(self, predicate: Callable[[T_co], object], /) -> bool:
        """Wait for an element for which ``predicate(element)`` is true, and cancel; of none, it is
        false.
        """
        return bool(_first("any", self._any(predicate)))

    async def any_async(self, predicate: Callable[[T_co], object], /) -> bool:
        """The same as ``any``, awaited."""
        return bool(await ends.first_async(self._any(predicate)))

    def all(self, predicate: Callable[[T_co], object], /) -> bool:
        """Wait for an element for which ``predicate(element)`` is false, and cancel; of none, it is
        true.
        """
        return not _first("all", self._all(predicate))

    async def all_async(self, predicate: Callable[[T_co], object], /) -> bool:
        """The same as ``all``, awaited."""
        return not await ends.first_async(self._all(predicate))

    def to_numpy(self, *, dtype: Any = None) -> np.ndarray[Any, Any]:
        """Wait for one array of all elements. See
        :func:`~rstreams_fast.streams.sinks.numpy.to_numpy`.
        """
        return numpy.to_numpy(self, dtype=dtype)

    async def to_numpy_async(self, *, dtype: Any = None) -> np.ndarray[Any, Any]:
        """Await one array of all elements. See
        :func:`~rstreams_fast.streams.sinks.numpy.to_numpy_async`.
        """
        return await numpy.to_numpy_async(self, dtype=dtype)

    def to_arrow(self, *, schema: pa.Schema | None = None) -> pa.Table:
        """Wait for one table of all rows. See
        :func:`~rstreams_fast.streams.sinks.arrow.to_arrow`.
        """
        return arrow.to_arrow(self, schema=schema)

    async def to_arrow_async(self, *, schema: pa.Schema | None = None) -> pa.Table:
        """Await one table of all rows. See
        :func:`~rstreams_fast.streams.sinks.arrow.to_arrow_async`.
        """
        return await arrow.to_arrow_async(self, schema=schema)

    def run(self) -> None:
        """Wait for the end, dropping the elements. See
        :func:`~rstreams_fast.streams.sinks.ends.run`.
        """
        ends.run(self)

    async def run_async(self) -> None:
        """Await the end, dropping the elements. See
        :func:`~rstreams_fast.streams.sinks.ends.run_async`.
        """
        await ends.run_async(self)

    def iterate(self, *, prefetch: int = PREFETCH) -> Iteration[T_co]:
        """Iterate within ``with`` or ``async with``, at most ``prefetch`` elements ahead.

        With ``prefetch=1`` this is exactly stop-and-wait.
        """
        return iterate(self, prefetch=prefetch)

    def __iter__(self) -> Iterator[T_co]:
        return iter(self.iterate())

    def __aiter__(self) -> AsyncIterator[T_co]:
        return aiter(self.iterate())

    # -- what they wait for the first element of -------------------------------------------------

    def _count(self) -> Pipeline[Any]:
        return self._through("reduce", _one_more, 0)

    # The number of elements that decide, 0 or 1: only what is asked for one by one, and not the
    # one result of ``reduce``, would make a burst of each.

    def _first_only(self) -> Pipeline[T_co]:
        # Boundaries ask ahead for no more than take needs; else a stream asks for one anyway.
        left = self._parts
        while left:
            left, part = left
            if not isinstance(part, Stage):
                return self._through("take", 1)
        return self

    def _any(self, predicate: Callable[[T_co], object]) -> Pipeline[Any]:
        check_sync("any", "predicate", predicate)
        return self._through("filter", predicate)._through("take", 1)._count()

    def _all(self, predicate: Callable[[T_co], object]) -> Pipeline[Any]:
        check_sync("all", "predicate", predicate)
        return self._through("skip_while", predicate)._through("take", 1)._count()

    def _through(self, *op: Any) -> Self:
        return self.with_part(Stage(op))


def _first(name: str, publisher: Pipeline[A]) -> Any:
    refuse_in_loop(f"{name}()", f"use 'await {name}_async()' there")
    return ends.first(publisher)


def _latter(_before: A, element: A) -> A:
    return element


def _one_more(count: int, _element: object) -> int:
    return count + 1
