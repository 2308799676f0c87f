"""Subscribers for those who have one function: on the caller, or behind a buffer of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from rstreams_fast._checks import check_count
from rstreams_fast.api import UNBOUNDED, OnNext, Subscription
from rstreams_fast.errors import report_dropped
from rstreams_fast.streams.engine.async_boundary import AsyncBoundary, AsyncBoundarySubscription
from rstreams_fast.streams.engine.defaults import PREFETCH
from rstreams_fast.streams.engine.drain import NotPicklable
from rstreams_fast.streams.engine.sink_subscriber import failure_of
from rstreams_fast.streams.engine.stages import Need, Stages
from rstreams_fast.streams.sinks.ends import ForEach, Run, check_functions

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Executor

__all__ = ["AsyncSubscriber", "SyncSubscriber"]

T = TypeVar("T")

OnElement = Callable[[T], object]
OnError = Callable[[BaseException], object] | None
OnComplete = Callable[[], object] | None


class SyncSubscriber(ForEach[T]):
    """A subscriber that calls ``fn(element)`` on the thread the element comes on.

    It asks for ``prefetch`` elements ahead, and again when three quarters of them are consumed; 1
    is stop-and-wait. Where ``fn`` returns ``False``, the object, that was the last element: the
    subscription is cancelled. What ``fn`` raises cancels it too, and goes to ``on_dropped_error``
    (§2.13). ``on_error(error)`` or ``on_complete()`` is called when upstream ends the stream, and
    not when this side did.

    ``run`` is the :class:`~rstreams_fast.Run`, to wait for the end by, to await, or to cancel:
    its result is ``None`` after completion or ``False``, and else what upstream signalled
    or ``fn`` raised.

    Serves one subscription; any other is cancelled (§2.5). Signals may come from any thread, one
    after the other (§1.3); a function that waits makes the publisher wait (see
    :class:`AsyncSubscriber`). ``KeyboardInterrupt`` and its like leave through the call they
    happened in.
    """

    __slots__ = ()

    _false_is_enough: ClassVar[bool] = True

    def __init__(
        self,
        fn: OnElement[T],
        *,
        on_error: OnError = None,
        on_complete: OnComplete = None,
        prefetch: int = 1,
    ) -> None:
        check_functions(fn=fn, on_error=on_error, on_complete=on_complete)
        prefetch = min(check_count("prefetch", prefetch, 1), UNBOUNDED)
        super().__init__(fn, on_error, on_complete, prefetch)

    def fail(self, error: BaseException) -> None:
        """End from this side (§2.6): nobody above is told why, so it is made known here."""
        self.upstream.cancel()
        decides = self.run.claim()
        if decides:
            self.drop_references()
        if isinstance(error, Exception):
            report_dropped(error, "§2.13: a subscriber failed")
        if decides:
            self.run.settle(failure_of(error), seen=True)


class AsyncSubscriber(NotPicklable, Generic[T]):
    """A subscriber that calls ``fn(element)`` on ``executor``, one call after the other.

    ``executor`` is a thread-based ``concurrent.futures.Executor``, an asyncio event loop, or
    ``None`` for a worker thread of its own, which ends with the subscription. No signal waits for
    ``fn`` (§2.2): at most ``prefetch`` elements are asked for, held and being worked on, together;
    more are asked for when three quarters are consumed, and 1 is stop-and-wait. An error comes
    after the elements before it. An executor that refuses the work cancels upstream, and is the
    stream's error.

    For ``fn``, ``on_error``, ``on_complete`` and ``run`` see :class:`SyncSubscriber`; all of them
    are called on ``executor``. Serves one subscription; any other is cancelled (§2.5).
    """

    __slots__ = ("_inlet", "on_next", "run")

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
        # The ring above it bounds what comes, so it may ask for all.
        end = SyncSubscriber(fn, on_error=on_error, on_complete=on_complete, prefetch=UNBOUNDED)
        self.run: Run = end.run
        self._inlet = inlet = AsyncBoundarySubscription(end, options, Stages(), Need())
        self.on_next: OnNext[T] = inlet.on_next
        inlet.start()

    def on_subscribe(self, subscription: Subscription, /) -> None:
        """Take the first subscription, cancel any other (§2.5); ask on the executor (§2.1)."""
        self._inlet.on_subscribe(subscription)

    def on_error(self, error: BaseException, /) -> None:
        """End with the error, after the elements that came before it."""
        self._inlet.on_error(error)

    def on_complete(self) -> None:
        """End after the elements that came before."""
        self._inlet.on_complete()

    def __repr__(self) -> str:
        return f"<AsyncSubscriber: {self.run!r}>"
