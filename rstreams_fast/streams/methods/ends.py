"""The methods of ``Stream`` that subscribe, and return a result, not another stream."""

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
    """The base class of ``Stream`` with ``for_each``, ``iterate`` and methods like ``to_list``."""

    __slots__ = ()

    def for_each(
        self,
        on_next: Callable[[T_co], object],
        on_error: Callable[[BaseException], object] | None = None,
        on_complete: Callable[[], object] | None = None,
        *,
        prefetch: int = UNBOUNDED,
    ) -> Run:
        """Call ``on_next`` with every element, on the thread that signals the element.

        At the end ``on_error`` or ``on_complete`` is called, and then the ``Run`` is done. An
        exception of ``on_next`` or ``on_complete`` cancels upstream and is the stream's error. If
        ``on_next`` returns a coroutine, which would never be awaited, the error is a ``TypeError``.
        Exceptions of ``on_error`` go to ``on_dropped_error``. If neither ``on_error`` nor a caller
        of ``result`` receives an error of the stream, this error goes to ``on_dropped_error``, too.
        ``KeyboardInterrupt``, ``SystemExit`` and ``GeneratorExit`` propagate to the publisher.

        If the source is synchronous, ``for_each`` returns after the last element. If such a source
        is endless, ``for_each`` never returns. Then run the source on another thread, by
        ``subscribe_on``. Or subscribe a ``SyncSubscriber``, whose ``run`` any thread can cancel.

        Args:
            on_next: A plain function, called with each element.
            on_error: ``on_error(error)`` is called when the stream fails.
            on_complete: ``on_complete()`` is called when the stream completes.
            prefetch: The number of elements that are requested in advance. When three quarters are
                consumed, more elements are requested. With 1, each element is requested after the
                previous element was consumed. Default: unbounded.

        Returns:
            The ``Run``, which can cancel the stream, wait for its end, and be awaited.

        Raises:
            TypeError: A function cannot be called, is ``async``, or is a generator function.
            ValueError: ``prefetch`` is less than 1.
        """
        return for_each(as_stream(self), on_next, on_error, on_complete, prefetch=prefetch)

    def iterate(self, *, prefetch: int = PREFETCH) -> Iteration[T_co]:
        """Return an iterator, for ``with`` or ``async with``, that requests elements in advance.

        The iterator subscribes when its block is entered, or at the first ``next`` or ``anext``.
        Upstream is cancelled at the end of the block, by ``close()``, and if ``next`` raises an
        exception. A synchronous publisher runs on the consumer's thread. An error of the stream is
        raised once, after the elements that came before the error. Any thread may call ``close()``,
        but only one thread at a time may iterate.

        ```python
        import rstreams_fast as rsf

        with rsf.range_(10).iterate(prefetch=2) as numbers:
            print(next(numbers), next(numbers))  # 0 1
        ```

        Args:
            prefetch: The number of elements that are requested in advance. With 1, each element is
                requested after the previous element was consumed.

        Raises:
            ValueError: ``prefetch`` is less than 1.
        """
        return iterate(as_stream(self), prefetch=prefetch)

    def to_list(self) -> list[T_co]:
        """Wait for all elements, and return them in a list. The list may become very long.

        Raises:
            RuntimeError: An event loop runs in this thread. Use ``to_list_async`` instead.
            Exception: The stream's error, not wrapped.
        """
        return results.to_list(as_stream(self))

    async def to_list_async(self) -> list[T_co]:
        """Await all elements, and return them in a list. The list may become very long.

        At most 1024 elements are requested in advance. If the awaiting task is cancelled, upstream
        is cancelled.

        Raises:
            Exception: The stream's error, not wrapped.
        """
        return await results.to_list_async(as_stream(self))

    @overload
    def first(self) -> T_co: ...

    @overload
    def first(self, default: A) -> T_co | A: ...

    def first(self, default: Any = MISSING) -> Any:
        """Wait for the first element of the stream, and return the element.

        Exactly one element is requested, and then upstream is cancelled.

        Args:
            default: The result for an empty stream.

        Raises:
            LookupError: The stream is empty, and there is no ``default``.
            RuntimeError: An event loop runs in this thread. Use ``first_async`` instead.
            Exception: The stream's error, not wrapped.
        """
        return results.first(as_stream(self)._first_only(), default)

    @overload
    async def first_async(self) -> T_co: ...

    @overload
    async def first_async(self, default: A) -> T_co | A: ...

    async def first_async(self, default: Any = MISSING) -> Any:
        """Await the first element of the stream, and return the element.

        If the awaiting task is cancelled, upstream is cancelled.

        Args:
            default: The result for an empty stream.

        Raises:
            LookupError: The stream is empty, and there is no ``default``.
        """
        return await results.first_async(as_stream(self)._first_only(), default)

    @overload
    def last(self) -> T_co: ...

    @overload
    def last(self, default: A) -> T_co | A: ...

    def last(self, default: Any = MISSING) -> Any:
        """Wait for the end of the stream, and return the last element.

        Args:
            default: The result for an empty stream.

        Raises:
            LookupError: The stream is empty, and there is no ``default``.
            RuntimeError: An event loop runs in this thread. Use ``last_async`` instead.
        """
        return results.last(as_stream(self), default)

    @overload
    async def last_async(self) -> T_co: ...

    @overload
    async def last_async(self, default: A) -> T_co | A: ...

    async def last_async(self, default: Any = MISSING) -> Any:
        """Await the end of the stream, and return the last element.

        Args:
            default: The result for an empty stream.

        Raises:
            LookupError: The stream is empty, and there is no ``default``.
        """
        return await results.first_async(
            as_stream(self).with_stage("reduce", _second_of, MISSING), default
        )

    def count(self) -> int:
        """Wait for the end of the stream, and return the number of elements.

        Raises:
            RuntimeError: An event loop runs in this thread. Use ``count_async`` instead.
        """
        return int(results.first(self._count(), name="count"))

    async def count_async(self) -> int:
        """Await the end of the stream, and return the number of elements."""
        return int(await results.first_async(as_stream(self)._count()))

    def any(self, predicate: Callable[[T_co], object], /) -> bool:
        """Return whether ``predicate(element)`` is true for at least one element.

        For an empty stream the result is false. The first element for which ``predicate`` is true
        cancels upstream.

        Args:
            predicate: A plain function.

        Raises:
            TypeError: ``predicate`` cannot be called, or is ``async``.
            RuntimeError: An event loop runs in this thread. Use ``any_async`` instead.
        """
        return bool(results.first(self._any(predicate), name="any"))

    async def any_async(self, predicate: Callable[[T_co], object], /) -> bool:
        """Await and return whether ``predicate(element)`` is true for at least one element.

        Args:
            predicate: A plain function.

        Raises:
            TypeError: ``predicate`` cannot be called, or is ``async``.
        """
        return bool(await results.first_async(as_stream(self)._any(predicate)))

    def all(self, predicate: Callable[[T_co], object], /) -> bool:
        """Return whether ``predicate(element)`` is true for all elements.

        For an empty stream the result is true. The first element for which ``predicate`` is false
        cancels upstream.

        Args:
            predicate: A plain function.

        Raises:
            TypeError: ``predicate`` cannot be called, or is ``async``.
            RuntimeError: An event loop runs in this thread. Use ``all_async`` instead.
        """
        return not results.first(self._all(predicate), name="all")

    async def all_async(self, predicate: Callable[[T_co], object], /) -> bool:
        """Await and return whether ``predicate(element)`` is true for all elements.

        Args:
            predicate: A plain function.

        Raises:
            TypeError: ``predicate`` cannot be called, or is ``async``.
        """
        return not await results.first_async(as_stream(self)._all(predicate))

    def to_numpy(self, *, dtype: Any = None) -> np.ndarray[Any, Any]:
        """Wait for all elements, and return them in one numpy array.

        An element is a scalar, or an array of at least one dimension. The rows of an array become
        rows of the result. A scalar becomes one row. All arrays must have the same shape, except
        for the number of rows. Each element is copied when it comes, so the stream may use the
        element's memory again. When the result's memory is full, it is doubled. At the end unused
        memory is freed. So at most about three times the memory of the result is needed. An element
        that does not fit cancels upstream.

        Args:
            dtype: The dtype of the result. A cast of an element to ``dtype`` may lose precision and
                nothing else. numpy's rule ``same_kind`` says which casts are allowed. Casts between
                integer types are allowed, too, if all values fit. Tuples become rows of a
                structured dtype without these checks, as in ``numpy.array``. Default: the smallest
                dtype to which all elements can be cast, as in ``numpy.concatenate``. An empty
                stream gives an array without rows, of ``dtype`` or of floats.

        Raises:
            OverflowError: The cast of a number would wrap around or become infinite.
            ValueError: A cast would cut a text, or the shape of an array does not fit.
            TypeError: An element is no array or scalar, is masked, or cannot be cast to ``dtype``.
            RuntimeError: An event loop runs in this thread. Use ``to_numpy_async`` instead.
        """
        return numpy.to_numpy(as_stream(self), dtype=dtype)

    async def to_numpy_async(self, *, dtype: Any = None) -> np.ndarray[Any, Any]:
        """Await all elements, and return them in one numpy array, as in ``to_numpy``.

        At most 8 elements are requested in advance. They are copied later than in ``to_numpy``, so
        the stream must not use the memory of an element again. If the awaiting task is cancelled,
        upstream is cancelled.

        Args:
            dtype: The dtype of the result, as in ``to_numpy``.
        """
        return await numpy.to_numpy_async(as_stream(self), dtype=dtype)

    def to_arrow(self, *, schema: pa.Schema | None = None) -> pa.Table:
        """Wait for all elements, and return their rows in one ``pyarrow.Table``, without a copy.

        The elements are tabular Arrow data: record batches, tables, and any object with
        ``__arrow_c_stream__`` or ``__arrow_c_array__``. An empty stream, such as the stream of an
        empty table, gives a table without rows. This table has the columns of ``schema``, or no
        columns. An element with another schema cancels upstream.

        Args:
            schema: The schema that all elements must have. Default: the first element's schema.

        Raises:
            ValueError: An element has another schema than ``schema`` or the first element.
            TypeError: An element is not tabular Arrow data.
            RuntimeError: An event loop runs in this thread. Use ``to_arrow_async`` instead.
        """
        return arrow.to_arrow(as_stream(self), schema=schema)

    async def to_arrow_async(self, *, schema: pa.Schema | None = None) -> pa.Table:
        """Await all elements, and return their rows in one ``pyarrow.Table``, as in ``to_arrow``.

        At most 8 elements are requested in advance. If the awaiting task is cancelled, upstream is
        cancelled.

        Args:
            schema: The schema that all elements must have, as in ``to_arrow``.
        """
        return await arrow.to_arrow_async(as_stream(self), schema=schema)

    def run(self) -> None:
        """Wait for the end of the stream, and drop all elements.

        Raises:
            RuntimeError: An event loop runs in this thread. Use ``run_async`` instead.
            Exception: The stream's error, not wrapped.
        """
        results.run(as_stream(self))

    async def run_async(self) -> None:
        """Await the end of the stream, and drop all elements.

        At most 1024 elements are requested in advance. If the awaiting task is cancelled, upstream
        is cancelled.

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
        # Boundaries (such as publish_on) request elements in advance, unless ``take(1)`` is
        # downstream. Stages (such as map) request none in advance, so they need no ``take(1)``.
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
