"""The methods of ``Stream`` that subscribe: what comes out is no stream any more."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar, overload

from rstreams_fast.api import UNBOUNDED
from rstreams_fast.core import MISSING
from rstreams_fast.streams.engine.defaults import ITERATE_PREFETCH
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
        return ends.first(self, default)

    @overload
    async def first_async(self) -> T_co: ...

    @overload
    async def first_async(self, default: A) -> T_co | A: ...

    async def first_async(self, default: Any = MISSING) -> Any:
        """Await the first element. See :func:`~rstreams_fast.streams.sinks.ends.first_async`."""
        return await ends.first_async(self, default)

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

    def iterate(self, *, prefetch: int = ITERATE_PREFETCH) -> Iteration[T_co]:
        """Iterate within ``with`` or ``async with``, at most ``prefetch`` elements ahead.

        With ``prefetch=1`` this is exactly stop-and-wait.
        """
        return iterate(self, prefetch=prefetch)

    def __iter__(self) -> Iterator[T_co]:
        return iter(self.iterate())

    def __aiter__(self) -> AsyncIterator[T_co]:
        return aiter(self.iterate())
