"""The operators of ``Stream`` that leave its elements as they are, and say how they travel."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from rstreams_fast._checks import check_sync
from rstreams_fast.api import UNBOUNDED, Publisher, Subscription
from rstreams_fast.streams.engine.assembly import Stage
from rstreams_fast.streams.engine.async_boundary import AsyncBoundary
from rstreams_fast.streams.engine.defaults import MULTICAST_BUFFER, PREFETCH
from rstreams_fast.streams.engine.overflow import Overflow, OverflowBoundary
from rstreams_fast.streams.engine.pipeline import Pipeline
from rstreams_fast.streams.operators.multicast import Multicast, MulticastOptions
from rstreams_fast.streams.operators.on_discard import OnDiscard
from rstreams_fast.streams.operators.on_error_continue import continuing
from rstreams_fast.streams.operators.peek import Named, Peek
from rstreams_fast.streams.operators.repeat import Repeat
from rstreams_fast.streams.operators.replay import Replay, ReplayBounds
from rstreams_fast.streams.operators.retry import Retry
from rstreams_fast.streams.operators.subscribe_on import SubscribeOn
from rstreams_fast.streams.operators.take_until import TakeUntil

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Executor

    from rstreams_fast.runtime.timers import Timer

__all__ = ["StreamFlow"]

T_co = TypeVar("T_co", covariant=True)


class StreamFlow(Pipeline[T_co]):
    """Recovery by repeating, observers, threads, sharing: of elements of the same type."""

    __slots__ = ()

    # -- recovery, repetition --------------------------------------------------------------------

    def retry(
        self,
        times: int = UNBOUNDED,
        *,
        when: Callable[[Exception], object] | None = None,
        delay: float | Callable[[int], float] | None = None,
        timer: Timer | None = None,
    ) -> Self:
        """Subscribe to what is above this again when it has failed, up to ``times`` times.

        ``retry(3)`` subscribes up to three times more after the first, as ``spark.Retry(3)`` calls.
        What had come before is not taken back: a source that starts anew repeats it. Elements that
        were asked for and have not come are asked for again. The error after the last retry is
        passed on, and so is one that ``when(error)`` is false for, or that is no ``Exception``. A
        source that can be read once only gives nothing to retry: the stream then ends with the
        error that was to be made good, and a note on it.

        ``delay``: seconds before each retry, or a function that gives them for the number of the
        retry, 1 for the first. Then a worker of one's own subscribes, at the time of ``timer``
        (``None``: that of this process), and elements that nobody asks for elsewhere come on it.
        What ``when`` or ``delay`` raises ends the stream, with the error as its ``__context__``.
        """
        if when is not None:
            check_sync("retry", "when", when)
        return self.with_part(Retry(times, when, delay, timer))

    def on_error_continue(self, fn: Callable[[Exception, Any], object], /) -> Self:
        """Leave out the elements that the stages directly above fail for, and go on.

            above   --1--0--2--|
            map       1/x
            below   --1-----.5-|   fn(ZeroDivisionError, 0)

        Those are ``map``, ``map_not_none`` and ``filter``, one or several in a row: what their
        functions raise is of one element alone. ``fn(error, element)`` is called with what the
        stage was given, which ``on_discard`` then gets, too; what ``fn`` raises ends the stream.
        Below anything else it is a ``ValueError``: a source, or another publisher, that has
        signalled an error has nothing more to give (§1.7). For calls of ``map_async`` catch what
        you can in the function. Reactor: ``onErrorContinue``, which also changes what stands above
        unseen; RxPY has none.
        """
        check_sync("on_error_continue", "fn", fn)
        return type(self)(self.source, tuple(continuing(self.parts, fn)))

    def repeat(self, times: int = UNBOUNDED, /) -> Self:
        """Subscribe to what is above this again when it has completed, up to ``times`` times.

            above   --1--2--|  --1--2--|
            below   --1--2-------1--2--|   of repeat(1)

        As ``retry``, so ``repeat(1)`` gives all twice. What was asked for and has not come is asked
        for again, and nothing else (§1.1). Without end, one that is empty is subscribed to until
        somebody cancels. Reactor: ``repeat``; RxPY: ``repeat``, which counts the first, too.
        """
        return self.with_part(Repeat(times))

    def take_until(self, other: Publisher[object], /) -> Self:
        """The elements of this until ``other`` gives one, or completes.

            above   --1--2--3--4--|
            other   ---------x
            below   --1--2---|

        ``other`` is subscribed to first, and asked for one element, whether or not there is demand;
        then this is cancelled, and what is on its way is dropped (§2.8). Nothing is asked for that
        was not asked of this (§1.1). An error of ``other`` ends the stream. Reactor:
        ``takeUntilOther``; RxPY: ``take_until``, which goes on when ``other`` completes.
        """
        return self.with_part(TakeUntil(other))

    # -- observers -------------------------------------------------------------------------------

    def do_on_subscribe(self, fn: Callable[[Subscription], object], /) -> Self:
        """Call ``fn(subscription)`` before ``on_subscribe`` is passed on. See ``do_on_next``."""
        return self._observe("on_subscribe", fn)

    def do_on_next(self, fn: Callable[[T_co], object], /) -> Self:
        """Call ``fn(element)`` before each element is passed on.

        What an observer returns does not matter, and what it raises goes to ``sys.unraisablehook``.
        """
        check_sync("do_on_next", "fn", fn)
        return self.with_part(Stage(("do_on_next", fn)))

    def do_on_error(self, fn: Callable[[BaseException], object], /) -> Self:
        """Call ``fn(error)`` before ``on_error`` is passed on. See ``do_on_next``."""
        return self._observe("on_error", fn)

    def do_on_complete(self, fn: Callable[[], object], /) -> Self:
        """Call ``fn()`` before ``on_complete`` is passed on. See ``do_on_next``."""
        return self._observe("on_complete", fn)

    def do_on_request(self, fn: Callable[[int], object], /) -> Self:
        """Call ``fn(n)`` before each ``request(n)`` from below is passed on. See ``do_on_next``."""
        return self._observe("on_request", fn)

    def do_on_cancel(self, fn: Callable[[], object], /) -> Self:
        """Call ``fn()`` before the first ``cancel()`` from below is passed on. See
        ``do_on_next``.
        """
        return self._observe("on_cancel", fn)

    def do_finally(self, fn: Callable[[], object], /) -> Self:
        """Call ``fn()`` once, after the end or a ``cancel()`` was passed on. See ``do_on_next``.

            above   --1--2--|
            below   --1--2--|fn()

        It is called as well when a subscriber raises (§2.13). Reactor: ``doFinally``; RxPY:
        ``finally_action``.
        """
        return self._observe("finally", fn)

    def log(self, name: str = "rstreams_fast", /, *, level: int = logging.DEBUG) -> Self:
        """Log each signal, and what is asked for, by ``logging.getLogger(name)``.

            above   --1--2--|
            below   --1--2--|   on_subscribe(...), request(2), on_next(1), on_next(2), on_complete()

        Nothing else changes (see ``do_on_next``). A level that the logger leaves out when the
        stream is composed costs nothing. Reactor: ``log``; RxPY: ``do``.
        """
        if not isinstance(level, int):
            raise TypeError(f"log(level): level must be an int, got {type(level).__name__}")
        logger = logging.getLogger(name)
        if not logger.isEnabledFor(level):
            return self

        def say(text: str) -> Callable[..., None]:
            return partial(logger.log, level, text)

        return (
            self.do_on_subscribe(say("on_subscribe(%r)"))
            .do_on_next(say("on_next(%r)"))
            .do_on_error(say("on_error(%r)"))
            .do_on_complete(say("on_complete()"))
            .do_on_request(say("request(%r)"))
            .do_on_cancel(say("cancel()"))
        )

    def named(self, name: str, /) -> Self:
        """Name what is above this: in errors, in ``describe()`` and in the figures.

            above   --1--2--X
            below   --1--2--X   whose notes say: it passed 'orders'

        An error that passes gets a note (once, however many subscribers there are). The name has a
        line of its own in ``describe()`` and among the figures of ``metrics_of``, where those of
        the boundaries above follow. Nothing else changes. Reactor: ``name``, ``checkpoint``.
        """
        return self.with_part(Named(name))

    def on_discard(self, hook: Callable[[Any], object], /) -> Self:
        """Call ``hook(element)`` for each element that is dropped above this: it can be released.

            above   --1--2--3--4--cancel
            filter  -----2-----4--
            hook      1     3         and what waits in buffers

        Of the elements that come into being above this each is delivered below this, or the hook is
        called for it: once, as it is where it is dropped. By a filter, ``skip``, ``take_while``, an
        overflow strategy, a switch, at once; what waits in a buffer, in a batch, or as a result of
        ``map_async``, when the stream ends, by cancel or error too, or the inner publisher whose it
        is. An element that a function has made another of, as ``map`` does, is the function's; one
        for which it raises, returns ``None``, or is cancelled, is discarded. So is the rest of a
        list that ``unbatch`` takes apart. ``combine_latest`` and ``with_latest_from`` may deliver
        an element several times; of ``expand``, what was delivered is expanded.

        The hook may be called on any thread, and for a batch or a pair gets that. What it raises
        goes to ``sys.unraisablehook``. Out of its reach: what other libraries' publishers hold;
        what subscribers share, by ``multicast``, ``replay`` or a processor; what goes into windows
        and groups, by ``window``, ``group_by`` or ``skip=`` of ``batch``; and what is below it, as
        what ``iterate`` has read ahead. Each element is accounted for until it leaves, which takes
        time; a stream without a hook has no such costs. Reactor: ``doOnDiscard``.
        """
        check_sync("on_discard", "hook", hook)
        return self.with_part(OnDiscard(hook))

    # -- boundaries ------------------------------------------------------------------------------

    def publish_on(
        self,
        executor: Executor | asyncio.AbstractEventLoop | str | None = None,
        *,
        prefetch: int = PREFETCH,
        max_bytes: int | None = None,
        weigher: Callable[[T_co], int] | None = None,
        delay_error: bool = False,
    ) -> Self:
        """Run what is below this on ``executor``, behind a bounded buffer (§2.2).

        ``executor``: a thread-based ``concurrent.futures.Executor``, an asyncio event loop,
        ``"caller"``, or ``None`` for a worker thread that lives as long as the subscription. At
        most ``prefetch`` elements are asked for, in the buffer, or being delivered, together; more
        are asked for when three quarters are consumed. ``request``, ``cancel`` and ``subscribe``
        return at once: upstream is asked from the executor.

        ``max_bytes`` bounds the bytes held too, as ``weigher(element)`` counts them. As an
        element's weight is not known before it has come, elements are then asked for one by one,
        while fewer than ``max_bytes`` are held: the bound is ``max_bytes`` plus one element. A
        single element larger than ``max_bytes`` passes.

        An error overtakes the elements in the buffer, unless ``delay_error``, or unless ``take``
        below needs no more elements than have come. Such a ``take(n)`` also narrows the buffer:
        at most ``n`` elements are asked for. An executor that refuses the work cancels upstream
        and is signalled by ``on_error``.
        """
        return self.with_part(AsyncBoundary(executor, prefetch, max_bytes, weigher, delay_error))

    def subscribe_on(
        self,
        executor: Executor | asyncio.AbstractEventLoop | str | None = None,
    ) -> Self:
        """Subscribe to what is above this, and ask it for elements, on ``executor`` (see
        ``publish_on``).

        ``subscribe`` and ``request`` return at once, and a synchronous source works there. Only
        the one closest to the source matters.
        """
        return self.with_part(SubscribeOn(executor))

    def on_overflow(
        self,
        strategy: Overflow,
        /,
        *,
        capacity: int | None = None,
        on_drop: Callable[[T_co], object] | None = None,
    ) -> Self:
        """Ask upstream for everything at once; hold what comes before it is asked for, and do with
        what finds no room as ``strategy`` says. With ``Overflow.ERROR`` upstream is asked when the
        subscriber first asks.

        At most ``capacity`` elements are held: 1024, or, for ``Overflow.LATEST``, 1. What is
        dropped is counted (see ``metrics_of``), and ``on_drop(element)`` is called, on the thread
        that upstream signals on; what that raises goes to ``sys.unraisablehook``. The end, an error
        too, comes after what is held. A source that is an iterator is run through within
        ``subscribe``: give it a thread, by ``subscribe_on``, if that takes long.
        """
        return self.with_part(OverflowBoundary(strategy, capacity, on_drop))

    # -- sharing ---------------------------------------------------------------------------------

    def multicast(
        self,
        *,
        buffer_size: int = MULTICAST_BUFFER,
        slow: Literal["gate", "drop"] = "gate",
        min_subscribers: int = 1,
        on_last_cancel: Literal["shut_down", "keep", "restart"] = "shut_down",
        delay_error: bool = False,
    ) -> Self:
        """One subscription to what is above this, shared by all who subscribe below it.

        All get the same elements, and may be ahead of each other by at most ``buffer_size``. One
        that comes late starts at the oldest element that is still held for another. The source is
        subscribed to when there are ``min_subscribers``.

        ``slow="gate"``: the source is not asked while the slowest lags by ``buffer_size``;
        ``"drop"``: the fastest sets the pace, and one that lags by more gets a
        ``BufferOverflowError``. ``on_last_cancel``: when the last has cancelled, ``"shut_down"``
        cancels the source, and one that comes later gets a ``ShutDownError``; ``"keep"`` leaves it
        waiting, unasked, for the next; ``"restart"`` cancels it and subscribes to it anew for the
        next, also after its end. See :class:`MulticastProcessor` for the rest.
        """
        options = MulticastOptions(buffer_size, slow, delay_error)
        return self.with_part(Multicast(options, min_subscribers, on_last_cancel))

    def share(self, *, buffer_size: int = MULTICAST_BUFFER) -> Self:
        """``multicast`` that begins with the first subscriber, and anew after the last has left."""
        return self.multicast(buffer_size=buffer_size, on_last_cancel="restart")

    def replay(
        self,
        *,
        count: int | None = None,
        max_bytes: int | None = None,
        weigher: Callable[[T_co], int] | None = None,
        seconds: float | None = None,
        buffer_size: int = MULTICAST_BUFFER,
        slow: Literal["gate", "drop"] = "gate",
        min_subscribers: int = 1,
        on_last_cancel: Literal["keep", "shut_down", "restart"] = "keep",
        delay_error: bool = False,
        timer: Timer | None = None,
    ) -> Self:
        """``multicast`` that keeps elements for subscribers who come late, also after the end.

        Kept are the last ``count`` elements, as many of the last as weigh at most ``max_bytes``
        together, by ``weigher(element)``, and those of the last ``seconds``: whichever is fewest.
        At least one must be given. See :class:`ReplayProcessor` for the rest.
        """
        bounds = ReplayBounds(count, max_bytes, weigher, seconds, timer)
        options = MulticastOptions(buffer_size, slow, delay_error)
        return self.with_part(Replay(bounds, options, min_subscribers, on_last_cancel))

    def _observe(self, signal: str, fn: Callable[..., object]) -> Self:
        check_sync(f"do_{signal}", "fn", fn)
        return self.with_part(Peek(signal, fn))
