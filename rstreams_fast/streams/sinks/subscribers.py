"""``SyncSubscriber`` and ``AsyncSubscriber``, which call a user's function for each element.

``SyncSubscriber`` calls the function on the thread that signals the element. ``AsyncSubscriber``
calls the function on an executor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from rstreams_fast._checks import check_count
from rstreams_fast.api import UNBOUNDED, OnNext, Subscription
from rstreams_fast.errors import report_dropped
from rstreams_fast.streams.engine.defaults import PREFETCH
from rstreams_fast.streams.engine.not_picklable import not_picklable
from rstreams_fast.streams.engine.stages import Need, Stages
from rstreams_fast.streams.operators.publish_on import AsyncBoundary, AsyncBoundarySubscription
from rstreams_fast.streams.sinks.for_each import ForEach, check_functions
from rstreams_fast.streams.sinks.run import Run

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Executor

__all__ = ["AsyncSubscriber", "SyncSubscriber"]

T = TypeVar("T")

OnElement = Callable[[T], object]
OnError = Callable[[BaseException], object] | None
OnComplete = Callable[[], object] | None


class SyncSubscriber(ForEach[T]):
    """A subscriber that calls ``fn(element)`` on the thread that signals the element.

    The attribute ``run`` is a ``Run``, which can wait for the end of the stream, or cancel it.
    ``run.result()`` returns ``None`` if upstream has completed, or if ``fn`` has returned
    ``False``. Otherwise ``run.result()`` raises the error of upstream or of ``fn``.

    The subscriber accepts one subscription and cancels any other (§2.5). Signals may come from any
    thread, one after another (§1.3). While ``fn`` runs, the publisher waits; ``AsyncSubscriber``
    avoids this. ``KeyboardInterrupt``, ``SystemExit`` and ``GeneratorExit`` propagate to the
    publisher.

    Args:
        fn: A plain function. If it returns the object ``False``, the subscription is cancelled, and
            ``fn`` is not called again. An exception of ``fn`` also cancels the subscription, and
            goes to ``on_dropped_error`` (§2.13).
        on_error: ``on_error(error)`` is called when upstream fails.
        on_complete: ``on_complete()`` is called when upstream completes.
        prefetch: The number of elements that are requested in advance. When three quarters are
            consumed, more elements are requested. With 1, each element is requested after the
            previous element was consumed. Default: unbounded, because the publisher waits while
            ``fn`` runs.

    Attributes:
        run: The handle (``Run``) with which to wait for the end of the stream, or to cancel it.

    Raises:
        TypeError: A function cannot be called, is ``async``, or is a generator function.
        ValueError: ``prefetch`` is less than 1.
    """

    __slots__ = ()

    _false_ends_stream: ClassVar[bool] = True

    def __init__(
        self,
        fn: OnElement[T],
        *,
        on_error: OnError = None,
        on_complete: OnComplete = None,
        prefetch: int = UNBOUNDED,
    ) -> None:
        check_functions(fn=fn, on_error=on_error, on_complete=on_complete)
        prefetch = min(check_count("prefetch", prefetch, 1), UNBOUNDED)
        super().__init__(fn, on_error, on_complete, prefetch)

    def fail(self, error: BaseException) -> None:
        """Cancel upstream (§2.6), end ``run``, the stream's handle, with ``error``, and report it.

        ``error`` goes to ``on_dropped_error``, because ``cancel`` does not tell upstream about it.
        """
        try:
            self.upstream.cancel()
        finally:
            claimed = self.run.claim()
            if claimed:
                self.drop_references()
            if isinstance(error, Exception):
                report_dropped(error, "§2.13: a subscriber failed")
            if claimed:
                self.run.settle(error, seen=True)


class AsyncSubscriber(Generic[T]):
    """A subscriber that calls ``fn(element)`` on ``executor``, one call after another.

    A signal, such as ``on_next``, does not wait until ``fn`` has returned (§2.2). An error of
    upstream takes effect after ``fn`` was called with all elements before the error. If the
    executor refuses work, upstream is cancelled, and the executor's exception is the stream's
    error. ``run.result()`` raises this error, or the error of upstream or ``fn``; otherwise it
    returns ``None``. The subscriber accepts one subscription and cancels any other (§2.5).

    Args:
        fn: A plain function. If it returns the object ``False`` or raises an exception, the
            subscription is cancelled, and ``fn`` is not called again. The exception goes to
            ``on_dropped_error`` (§2.13).
        executor: The thread-based ``concurrent.futures.Executor``, or the event loop, that calls
            the functions. Default: a worker thread, which ends with the subscription.
        on_error: ``on_error(error)`` is called when upstream fails.
        on_complete: ``on_complete()`` is called when upstream completes.
        prefetch: The bound on the sum of requested elements, elements in the buffer and elements in
            ``fn``. When three quarters are consumed, more elements are requested. With 1, each
            element is requested after the previous element was consumed.

    Attributes:
        run: The handle (``Run``) with which to wait for the end of the stream, or to cancel it.
        on_next: Puts an element into the buffer (§2.2); see ``Subscriber``.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: ``prefetch`` is less than 1.
    """

    __slots__ = ("__weakref__", "_boundary", "on_next", "run")

    __reduce__ = not_picklable

    def __init__(
        self,
        fn: OnElement[T],
        executor: Executor | asyncio.AbstractEventLoop | str | None = None,
        *,
        on_error: OnError = None,
        on_complete: OnComplete = None,
        prefetch: int = PREFETCH,
    ) -> None:
        options = AsyncBoundary(executor, prefetch, None, None, delay_error=True)
        # ``boundary`` buffers at most ``prefetch`` elements of upstream, and signals them to
        # ``end``. So ``end`` itself need not bound its request.
        end = SyncSubscriber(fn, on_error=on_error, on_complete=on_complete, prefetch=UNBOUNDED)
        self.run: Run = end.run
        self._boundary = boundary = AsyncBoundarySubscription(end, options, Stages(), Need())
        self.on_next: OnNext[T]
        # ``self.on_next = ...`` would fail if a subclass has its own method ``on_next``. So call
        # the descriptor that ``__slots__`` has made in this class.
        vars(AsyncSubscriber)["on_next"].__set__(self, boundary.on_next)
        boundary.start()

    def on_subscribe(self, subscription: Subscription, /) -> None:
        """Accept the first subscription and cancel any other subscription (§2.5).

        The elements are requested on the executor (§2.1).

        Args:
            subscription: The subscription to upstream.
        """
        self._boundary.on_subscribe(subscription)

    def on_error(self, error: BaseException, /) -> None:
        """Let ``run``, the stream's handle, end with ``error``, after all earlier elements.

        This method does not wait. The executor first calls the user's function ``fn`` with all
        earlier elements, and then ends ``run``.

        Args:
            error: The error of upstream.
        """
        self._boundary.on_error(error)

    def on_complete(self) -> None:
        """Let ``run``, the stream's handle, end after the last call of the user's ``fn``."""
        self._boundary.on_complete()

    def __repr__(self) -> str:
        return f"<AsyncSubscriber: {self.run!r}>"
