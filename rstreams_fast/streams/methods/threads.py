"""The methods of ``Stream`` that choose its threads and the bounds of its buffers."""

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
    """``publish_on``, ``subscribe_on`` and ``on_overflow``."""

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
        """Run the stages below on ``executor``, behind a bounded buffer (§2.2).

        ``request``, ``cancel`` and ``subscribe`` return at once: the executor makes the requests to
        upstream. An error is signalled at once, and the elements in the buffer are dropped. But
        these elements are delivered first if ``delay_error`` is set, or if enough elements have
        come for a ``take`` below. A ``take(n)`` below also bounds the buffer: at most ``n``
        elements are requested. If the executor refuses the work, upstream is cancelled, and
        ``on_error`` signals the refusal.

        Args:
            executor: A thread-based ``concurrent.futures.Executor``, an asyncio event loop, or
                ``"caller"``. Default: a worker thread that lives as long as the subscription.
            prefetch: The bound on the sum of requested elements, elements in the buffer, and
                elements being delivered. More are requested when three quarters are consumed.
            max_bytes: The most bytes held, counted by ``weigher``. The weight of an element is
                unknown before the element has come. So elements are requested one by one, while
                fewer than ``max_bytes`` are held, and the bound is ``max_bytes`` plus one element
                of any size. Default: no bound in bytes.
            weigher: ``weigher(element)`` gives the bytes of an element; needed with ``max_bytes``.
            delay_error: Signal an error after the elements in the buffer, not at once.

        Raises:
            TypeError: An argument has the wrong type, or ``executor`` runs processes.
            ValueError: A bound is less than 1, or only one of ``max_bytes`` and ``weigher`` is
                given.
        """
        return with_part(self, AsyncBoundary(executor, prefetch, max_bytes, weigher, delay_error))

    def subscribe_on(
        self,
        executor: Executor | asyncio.AbstractEventLoop | str | None = None,
    ) -> Self:
        """Subscribe to the stream above, and make the requests to it, on ``executor``.

        ``subscribe`` and ``request`` return at once, and a synchronous source works on
        ``executor``. Only the ``subscribe_on`` closest to the source matters.

        Args:
            executor: As in ``publish_on``. Default: a worker thread that lives as long as the
                subscription.

        Raises:
            TypeError: ``executor`` has the wrong type, or runs processes.
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
        """Make an unbounded request to upstream, and hold the elements until they are requested.
        ``strategy`` chooses the elements to drop.

        ``Overflow.ERROR`` makes this request only at the subscriber's first request. Dropped
        elements are counted (see ``metrics_of``). An error and a completion come after the elements
        that are held. If the source is an iterator, the iterator is run to its end within
        ``subscribe``: if that takes long, use ``subscribe_on``.

        Args:
            strategy: What happens to an element when the buffer is full; see ``Overflow``.
            capacity: The most elements held. Default: 1024, or 1 for ``Overflow.LATEST``.
            on_drop: ``on_drop(element)`` is called for each element that is dropped, on the thread
                that upstream signals on. Its exceptions go to ``sys.unraisablehook``.

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
        """Run the stages below on ``executor``, behind a bounded buffer of numpy records. Needs
        numpy.

        Elements are arrays of ``dtype``. They are copied into memory for ``capacity`` records,
        which is allocated once. Delivered arrays are new: each has all records that are held at
        that time, but at most ``chunk``. One array is requested at a time, when the previous array
        is copied completely. So at most ``capacity`` records are held, and one array that does not
        fit yet. Upstream must not change that array before the next request. An element of another
        dtype, or a masked array, ends the stream with a ``TypeError``.

        Args:
            dtype: The dtype of the elements. A sub-array dtype, such as ``("f4", (3,))``, is
                allowed: the records of this example are rows of 3 numbers.
            executor: Where the stages below run; see ``publish_on``.
            capacity: The most records in the buffer.
            chunk: The most records of a delivered array. Default: ``capacity``.
            delay_error: Whether an error waits for the records before it; see ``publish_on``.

        Raises:
            TypeError: ``dtype`` has Python objects in it, or an argument has the wrong type.
            ValueError: A bound is less than 1.
        """
        return as_stream(self).with_part(
            PublishRecordsOn(dtype, executor, capacity, chunk, delay_error)
        )
