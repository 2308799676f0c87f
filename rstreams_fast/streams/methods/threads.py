"""The methods of ``Stream`` that choose the threads of a stream, and the bounds of its buffers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from rstreams_fast.streams.engine.defaults import PREFETCH, ROWS
from rstreams_fast.streams.methods.composing import as_stream, with_part
from rstreams_fast.streams.operators.on_overflow import Overflow, OverflowBoundary
from rstreams_fast.streams.operators.publish_on import AsyncBoundary
from rstreams_fast.streams.operators.publish_records_on import PublishRecordsOn
from rstreams_fast.streams.operators.subscribe_on import SubscribeOn

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Executor

    import numpy as np

    from rstreams_fast.streams.stream import Stream

__all__ = ["ThreadMethods"]

T_co = TypeVar("T_co", covariant=True)


class ThreadMethods(Generic[T_co]):
    """The base class of ``Stream`` with ``publish_on``, ``subscribe_on`` and ``on_overflow``."""

    __slots__ = ()

    def publish_on(
        self,
        executor: Executor | asyncio.AbstractEventLoop | str | None = None,
        *,
        prefetch: int = PREFETCH,
        max_bytes: int | None = None,
        weigher: Callable[[T_co], int] | None = None,
        delay_error: bool = False,
    ) -> Self:
        """Put elements into a bounded buffer, and run the downstream stages on ``executor`` (§2.2).

        ``request`` and ``cancel`` return immediately, because the executor makes the requests to
        upstream. ``subscribe`` calls upstream's ``subscribe``. This call can take long if upstream
        requests elements without demand, as ``take_last``, ``sample``, ``debounce`` and
        ``throttle_first`` do, or if ``repeat`` or ``retry`` repeats a stream without elements. Then
        put ``subscribe_on()`` above.

        An error is signalled immediately, and the elements in the buffer are dropped. But the
        elements are delivered before the error if ``delay_error`` is true, or if a ``take(n)`` is
        downstream, and ``n`` elements have already come from upstream. With a ``take(n)``
        downstream, at most ``n`` elements are requested. If the executor refuses the work, upstream
        is cancelled, and ``on_error`` signals the executor's exception.

        Args:
            executor: A thread-based ``concurrent.futures.Executor``, an asyncio event loop, or
                ``"caller"`` (the thread that signals or requests elements). Default: a worker
                thread, which ends with the subscription.
            prefetch: The bound on the sum of requested elements, elements in the buffer, and
                elements being delivered. More are requested when three quarters are consumed.
            max_bytes: The bound on the buffer in bytes, as ``weigher`` counts them. The size of an
                element is unknown before the element has come. So elements are requested one by one
                while the buffer has fewer than ``max_bytes`` bytes. Therefore the buffer can exceed
                ``max_bytes`` by one element of any size. Default: no bound in bytes.
            weigher: ``weigher(element)`` returns the size in bytes. Required with ``max_bytes``.
            delay_error: Whether an error is signalled after the elements in the buffer.

        Raises:
            TypeError: An argument has the wrong type, or ``executor`` is a pool of processes.
            ValueError: ``prefetch`` or ``max_bytes`` is less than 1, or only one of ``max_bytes``
                and ``weigher`` is given.
        """
        return with_part(self, AsyncBoundary(executor, prefetch, max_bytes, weigher, delay_error))

    def subscribe_on(
        self,
        executor: Executor | asyncio.AbstractEventLoop | str | None = None,
    ) -> Self:
        """Call upstream's ``subscribe`` and ``request`` on ``executor``.

        So ``subscribe`` and ``request`` of the new stream return immediately, and a synchronous
        source runs on ``executor``. If a stream has several ``subscribe_on``, the source runs on
        the executor of the one that is closest to the source.

        Args:
            executor: As in ``publish_on``. Default: a worker thread for each subscription.

        Raises:
            TypeError: ``executor`` has the wrong type, or is a pool of processes.
        """
        return with_part(self, SubscribeOn(executor))

    def on_overflow(
        self,
        strategy: Overflow,
        /,
        *,
        capacity: int | None = None,
        on_drop: Callable[[T_co], object] | None = None,
    ) -> Self:
        """Buffer the elements of an upstream that does not wait for demand. May drop elements.

        An unbounded number of elements is requested within ``subscribe``. When the buffer is full,
        ``strategy`` decides which element is dropped, or ends the stream. With ``Overflow.ERROR``
        the request is made at the subscriber's first request. Dropped elements are counted (see
        ``metrics_of``). The terminal signal is passed downstream after the elements in the buffer.
        If the source is an iterator, ``subscribe`` runs the iterator to its end. To avoid this, use
        ``subscribe_on``.

        Args:
            strategy: What happens to an element when the buffer is full; see ``Overflow``.
            capacity: The size of the buffer, in elements. Default: 1024, or 1 for
                ``Overflow.LATEST``.
            on_drop: ``on_drop(element)`` is called for each element that is dropped, on the thread
                on which upstream signals the element. Its exceptions go to ``sys.unraisablehook``.

        Raises:
            TypeError: An argument has the wrong type.
            ValueError: ``capacity`` is less than 1, or does not suit ``strategy``.
        """
        return with_part(self, OverflowBoundary(strategy, capacity, on_drop))

    def publish_records_on(
        self: ThreadMethods[np.ndarray[Any, Any]],
        dtype: Any,
        executor: Executor | asyncio.AbstractEventLoop | str | None = None,
        *,
        capacity: int = ROWS,
        chunk: int | None = None,
        delay_error: bool = False,
    ) -> Stream[np.ndarray[Any, Any]]:
        """Copy numpy records into a bounded buffer, and run the downstream stages on ``executor``.

        The elements of upstream are arrays of ``dtype``. Their records are copied into a buffer of
        ``capacity`` records, which is allocated once. Each delivered array is a new array with all
        records in the buffer, but at most ``chunk`` records.

        One array is requested at a time, when the previous array is copied completely. So the
        memory has at most ``capacity`` records, and one array that does not fit into the buffer
        yet. Upstream must not change this array before the next request. An element with another
        dtype, or a masked array, ends the stream with a ``TypeError``. numpy must be installed.

        Args:
            dtype: The dtype of the elements. A sub-array dtype, such as ``("f4", (3,))``, is
                allowed: the records of this example are rows of 3 numbers.
            executor: The executor of the downstream stages; see ``publish_on``.
            capacity: The size of the buffer, in records.
            chunk: The largest number of records in a delivered array. Default: ``capacity``.
            delay_error: Whether an error is signalled after the records in the buffer.

        Raises:
            TypeError: ``dtype`` contains Python objects, or an argument has the wrong type.
            ValueError: ``capacity`` or ``chunk`` is less than 1.
        """
        return as_stream(self).with_part(
            PublishRecordsOn(dtype, executor, capacity, chunk, delay_error)
        )
