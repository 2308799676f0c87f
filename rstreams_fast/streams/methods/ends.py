"""The methods of ``Stream`` that subscribe, and return a result in place of a stream."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from rstreams_fast._checks import check_sync
from rstreams_fast.api import UNBOUNDED
from rstreams_fast.core import MISSING
from rstreams_fast.streams.engine.assembly import Stage
from rstreams_fast.streams.engine.defaults import PREFETCH
from rstreams_fast.streams.engine.pipeline import Pipeline
from rstreams_fast.streams.methods.composing import as_stream
from rstreams_fast.streams.sinks import arrow, numpy, results
from rstreams_fast.streams.sinks.for_each import for_each
from rstreams_fast.streams.sinks.iterate import Iteration, iterate

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from rstreams_fast.streams.sinks.run import Run

__all__ = ["EndMethods"]

T_co = TypeVar("T_co", covariant=True)
A = TypeVar("A")


class EndMethods(Generic[T_co]):
    """``for_each``, ``iterate``, and the methods that wait for a result."""

    __slots__ = ()

    def for_each(
        self,
        on_next: Callable[[T_co], object],
        on_error: Callable[[BaseException], object] | None = None,
        on_complete: Callable[[], object] | None = None,
        *,
        prefetch: int = UNBOUNDED,
    ) -> Run:
        """Call ``on_next`` with every element, on the threads that the publisher signals on.

        At the end ``on_error`` or ``on_complete`` is called, and then the ``Run`` is done. An
        exception of ``on_next`` or ``on_complete`` cancels upstream and is the stream's error. If
        ``on_next`` returns a coroutine, which would never be awaited, the error is a ``TypeError``.
        Exceptions of ``on_error`` go to ``on_dropped_error``. So does an error of the stream, if
        neither ``on_error`` nor a caller of ``result`` receives it. ``KeyboardInterrupt``,
        ``SystemExit`` and ``GeneratorExit`` propagate to the caller of the signal.

        If the source is synchronous, all elements have come when ``for_each`` returns. If such a
        source is endless, ``for_each`` never returns. Then run the source on another thread, by
        ``subscribe_on``. Or subscribe a ``SyncSubscriber``: any thread can cancel its ``run``.

        Args:
            on_next: A plain function, called with each element.
            on_error: Called with the error when the stream fails.
            on_complete: Called when the stream completes.
            prefetch: Elements that are requested in advance; more are requested when three quarters
                are consumed. With 1 each element is requested after the previous one was consumed.
                Default: unbounded.

        Returns:
            The ``Run``, which can cancel the stream, wait for its end, and be awaited.

        Raises:
            TypeError: A function cannot be called, is ``async``, or is a generator function.
            ValueError: ``prefetch`` is less than 1.
        """
        return for_each(as_stream(self), on_next, on_error, on_complete, prefetch=prefetch)

    def iterate(self, *, prefetch: int = PREFETCH) -> Iteration[T_co]:
        """Iterate within ``with`` or ``async with``, at most ``prefetch`` elements ahead.

        The iterator subscribes when its block is entered, or with the first ``next`` or ``anext``.
        The end of the block, ``close()``, and an exception of ``next`` cancel upstream, once. A
        synchronous publisher works on the consumer's thread. An error of the stream is raised once,
        after the elements before it. One consumer may iterate at a time. Any thread may call
        ``close()``.

        ```python
        import rstreams_fast as rsf

        with rsf.range_(10).iterate(prefetch=2) as numbers:
            print(next(numbers), next(numbers))  # 0 1
        ```

        Args:
            prefetch: Elements that are requested in advance. With 1 each element is requested
                after the previous one was consumed.

        Raises:
            ValueError: ``prefetch`` is less than 1.
        """
        return iterate(as_stream(self), prefetch=prefetch)

    def to_list(self) -> list[T_co]:
        """Wait for all elements and return them in a list of unbounded size.

        Raises:
            RuntimeError: An event loop runs in this thread: use ``to_list_async``.
            Exception: The stream's error, not wrapped.
        """
        return results.to_list(as_stream(self))

    async def to_list_async(self) -> list[T_co]:
        """Await all elements and return them in a list of unbounded size.

        At most 1024 elements are requested in advance.
        Cancelling the awaiting task cancels upstream, once.

        Raises:
            Exception: The stream's error, not wrapped.
        """
        return await results.to_list_async(as_stream(self))

    @overload
    def first(self) -> T_co: ...

    @overload
    def first(self, default: A) -> T_co | A: ...

    def first(self, default: Any = MISSING) -> Any:
        """Wait for the first element and return it.

        Exactly one element is requested, and then upstream is cancelled.

        Args:
            default: Returned for an empty stream.

        Raises:
            LookupError: The stream is empty, and there is no ``default``.
            RuntimeError: An event loop runs in this thread: use ``first_async``.
            Exception: The stream's error, not wrapped.
        """
        return results.first(as_stream(self)._first_only(), default)

    @overload
    async def first_async(self) -> T_co: ...

    @overload
    async def first_async(self, default: A) -> T_co | A: ...

    async def first_async(self, default: Any = MISSING) -> Any:
        """Await the first element and return it, as ``first`` does.

        Cancelling the awaiting task cancels upstream, once.

        Args:
            default: Returned for an empty stream.

        Raises:
            LookupError: The stream is empty, and there is no ``default``.
        """
        return await results.first_async(as_stream(self)._first_only(), default)

    @overload
    def last(self) -> T_co: ...

    @overload
    def last(self, default: A) -> T_co | A: ...

    def last(self, default: Any = MISSING) -> Any:
        """Wait for the end and return the last element.

        Args:
            default: Returned for an empty stream.

        Raises:
            LookupError: The stream is empty, and there is no ``default``.
            RuntimeError: An event loop runs in this thread: use ``last_async``.
        """
        return results.last(as_stream(self), default)

    @overload
    async def last_async(self) -> T_co: ...

    @overload
    async def last_async(self, default: A) -> T_co | A: ...

    async def last_async(self, default: Any = MISSING) -> Any:
        """Await the end and return the last element.

        Args:
            default: Returned for an empty stream.

        Raises:
            LookupError: The stream is empty, and there is no ``default``.
        """
        return await results.first_async(
            as_stream(self).with_stage("reduce", _second_of, MISSING), default
        )

    def count(self) -> int:
        """Wait for the end and return the number of elements.

        Raises:
            RuntimeError: An event loop runs in this thread: use ``count_async``.
        """
        return int(results.first(self._count(), name="count"))

    async def count_async(self) -> int:
        """Await the end and return the number of elements."""
        return int(await results.first_async(as_stream(self)._count()))

    def any(self, predicate: Callable[[T_co], object], /) -> bool:
        """Return whether ``predicate(element)`` is true for at least one element.

        The result of an empty stream is false. The first element for which ``predicate`` is true
        cancels upstream.

        Args:
            predicate: A plain function.

        Raises:
            TypeError: ``predicate`` cannot be called, or is ``async``.
            RuntimeError: An event loop runs in this thread: use ``any_async``.
        """
        return bool(results.first(self._any(predicate), name="any"))

    async def any_async(self, predicate: Callable[[T_co], object], /) -> bool:
        """Do the same as ``any``, and await the result.

        Args:
            predicate: A plain function.

        Raises:
            TypeError: ``predicate`` cannot be called, or is ``async``.
        """
        return bool(await results.first_async(as_stream(self)._any(predicate)))

    def all(self, predicate: Callable[[T_co], object], /) -> bool:
        """Return whether ``predicate(element)`` is true for all elements.

        The result of an empty stream is true. The first element for which ``predicate`` is false
        cancels upstream.

        Args:
            predicate: A plain function.

        Raises:
            TypeError: ``predicate`` cannot be called, or is ``async``.
            RuntimeError: An event loop runs in this thread: use ``all_async``.
        """
        return not results.first(self._all(predicate), name="all")

    async def all_async(self, predicate: Callable[[T_co], object], /) -> bool:
        """Do the same as ``all``, and await the result.

        Args:
            predicate: A plain function.

        Raises:
            TypeError: ``predicate`` cannot be called, or is ``async``.
        """
        return not await results.first_async(as_stream(self)._all(predicate))

    def to_numpy(self, *, dtype: Any = None) -> np.ndarray[Any, Any]:
        """Wait for all elements and return them in one numpy array.

        An element is an array of at least one dimension, or a scalar. The rows of an array become
        rows of the result. A scalar becomes one row. All arrays must have the same shape, except
        for the number of rows. Each element is copied when it comes, so the stream may use the
        element's memory again. The result's memory doubles when it is full, and unused memory is
        given back at the end. At most about three times the memory of the result is needed. An
        element that does not fit cancels upstream.

        Args:
            dtype: The dtype of the result. A cast of elements may lose precision and nothing else.
                Numpy's rule ``same_kind`` says which casts are allowed. Casts between integer types
                are allowed, too, if all values fit. Tuples, the rows of a structured dtype, are
                cast as by ``numpy.array``, without this check. Default: the smallest dtype to which
                all elements can be cast, as in ``numpy.concatenate``. An empty stream gives an
                array without rows, of ``dtype`` or of floats.

        Raises:
            OverflowError: A number would wrap around or become infinite.
            ValueError: Text would be cut, or an array does not fit.
            TypeError: An element has another type, or is a masked array.
            RuntimeError: An event loop runs in this thread: use ``to_numpy_async``.
        """
        return numpy.to_numpy(as_stream(self), dtype=dtype)

    async def to_numpy_async(self, *, dtype: Any = None) -> np.ndarray[Any, Any]:
        """Await all elements and return them in one numpy array, as ``to_numpy`` does.

        At most 8 elements are requested in advance. They are copied later than in ``to_numpy``, so
        the stream must not use the memory of an element again.
        Cancelling the awaiting task cancels upstream, once.

        Args:
            dtype: The dtype of the result, as in ``to_numpy``.
        """
        return await numpy.to_numpy_async(as_stream(self), dtype=dtype)

    def to_arrow(self, *, schema: pa.Schema | None = None) -> pa.Table:
        """Wait for the rows of all elements and return them as one ``pyarrow.Table``, without a
        copy.

        The elements are tabular Arrow data: record batches, tables, and any object with
        ``__arrow_c_stream__`` or ``__arrow_c_array__``. An empty stream, such as the stream of an
        empty table, gives a table without rows, with the columns of ``schema`` or no columns. An
        element of another schema cancels upstream.

        Args:
            schema: The schema that all elements must have. Default: the first element's schema.

        Raises:
            ValueError: An element has another schema.
            TypeError: An element is not tabular Arrow data.
            RuntimeError: An event loop runs in this thread: use ``to_arrow_async``.
        """
        return arrow.to_arrow(as_stream(self), schema=schema)

    async def to_arrow_async(self, *, schema: pa.Schema | None = None) -> pa.Table:
        """Await the rows of all elements and return them as one table, as ``to_arrow`` does.

        At most 8 elements are requested in advance.
        Cancelling the awaiting task cancels upstream, once.

        Args:
            schema: The schema that all elements must have, as in ``to_arrow``.
        """
        return await arrow.to_arrow_async(as_stream(self), schema=schema)

    def run(self) -> None:
        """Consume the stream to its end and drop the elements.

        Raises:
            RuntimeError: An event loop runs in this thread: use ``run_async``.
            Exception: The stream's error, not wrapped.
        """
        results.run(as_stream(self))

    async def run_async(self) -> None:
        """Consume the stream to its end without blocking the loop, and drop the elements.

        At most 1024 elements are requested in advance.
        Cancelling the awaiting task cancels upstream, once.

        Raises:
            Exception: The stream's error, not wrapped.
        """
        await results.run_async(as_stream(self))

    def __iter__(self) -> Iterator[T_co]:
        return iter(self.iterate())

    def __aiter__(self) -> AsyncIterator[T_co]:
        return aiter(self.iterate())

    def _count(self) -> Pipeline[Any]:
        return as_stream(self).with_stage("reduce", _increment, 0)

    def _first_only(self) -> Pipeline[T_co]:
        # Boundaries request elements in advance, unless ``take(1)`` is below them. A stream without
        # boundaries makes no requests in advance, so ``take(1)`` is not needed.
        left = as_stream(self)._parts
        while left:
            left, part = left
            if not isinstance(part, Stage):
                return as_stream(self).with_stage("take", 1)
        return as_stream(self)

    def _any(self, predicate: Callable[[T_co], object]) -> Pipeline[Any]:
        check_sync("any", "predicate", predicate)
        return as_stream(self).with_stage("filter", predicate).with_stage("take", 1)._count()

    def _all(self, predicate: Callable[[T_co], object]) -> Pipeline[Any]:
        check_sync("all", "predicate", predicate)
        return as_stream(self).with_stage("skip_while", predicate).with_stage("take", 1)._count()


def _second_of(_before: A, element: A) -> A:
    return element


def _increment(count: int, _element: object) -> int:
    return count + 1
