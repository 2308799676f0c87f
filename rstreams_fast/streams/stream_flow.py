"""The operators of ``Stream`` that leave its elements as they are, and say how they travel."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from rstreams_fast._checks import check_sync
from rstreams_fast.api import UNBOUNDED, Publisher, Subscription
from rstreams_fast.streams.engine.assembly import Stage
from rstreams_fast.streams.engine.defaults import MULTICAST_BUFFER, PREFETCH
from rstreams_fast.streams.engine.pipeline import Pipeline
from rstreams_fast.streams.operators.multicast import Multicast, MulticastOptions
from rstreams_fast.streams.operators.on_discard import OnDiscard
from rstreams_fast.streams.operators.on_error_continue import continuing
from rstreams_fast.streams.operators.on_overflow import Overflow, OverflowBoundary
from rstreams_fast.streams.operators.peek import Named, Peek
from rstreams_fast.streams.operators.publish_on import AsyncBoundary
from rstreams_fast.streams.operators.repeat import Repeat
from rstreams_fast.streams.operators.replay import Replay, ReplayBounds
from rstreams_fast.streams.operators.retry import Retry
from rstreams_fast.streams.operators.subscribe_on import SubscribeOn
from rstreams_fast.streams.operators.take_last import TakeLast
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
        """Subscribe to the stream above again when it has failed, up to ``times`` times.

        ``retry(3)`` subscribes up to three times more after the first, as ``spark.Retry(3)`` calls.
        Elements that had come before are not taken back: a source that starts anew repeats them.
        Elements that were asked for and have not come are asked for again. The error after the last
        retry is passed on, and so is an error that is no ``Exception``. A source that can be read
        only once gives nothing to retry: the stream then ends with the error that was to be made
        good, and a note on it.

        With a ``delay`` a worker thread of the stream subscribes, and elements that nobody asks for
        elsewhere come on that thread. An exception of ``when`` or ``delay`` ends the stream, with
        the error as its ``__context__``.

        Args:
            times: The most retries. Default: no limit.
            when: An error for which ``when(error)`` is false is passed on. Default: retry every
                error.
            delay: Seconds before each retry, or a function that gives them for the number of the
                retry, 1 for the first. Default: no delay.
            timer: The clock of ``delay``. Default: the timer of this process.

        Raises:
            TypeError: An argument has the wrong type.
            ValueError: ``times`` or ``delay`` is negative.
        """
        if when is not None:
            check_sync("retry", "when", when)
        return self.with_part(Retry(times, when, delay, timer))

    def on_error_continue(self, fn: Callable[[Exception, Any], object], /) -> Self:
        """Leave out the elements that the stages directly above fail for, and go on.

        ```text
        above   --1--0--2--|
        map       1/x
        below   --1-----.5-|   fn(ZeroDivisionError, 0)
        ```

        These stages are ``map``, ``map_not_none`` and ``filter``, one or several in a row: an
        exception of their functions concerns one element alone. ``on_discard`` gets the element,
        too. An exception of ``fn`` ends the stream. For calls of ``map_async`` catch the exception
        in the function.

        Reactor: ``onErrorContinue``, which also changes the operators above it; RxPY has none.

        Args:
            fn: ``fn(error, element)`` is called with the exception and the element that the stage
                was given.

        Raises:
            TypeError: ``fn`` cannot be called, or is ``async``.
            ValueError: The operator above is none of these stages: a source, or another publisher,
                that has signalled an error has nothing more to give (§1.7).
        """
        check_sync("on_error_continue", "fn", fn)
        return type(self)(self.source, tuple(continuing(self.parts, fn)))

    def repeat(self, times: int = UNBOUNDED, /) -> Self:
        """Subscribe to the stream above again when it has completed, up to ``times`` times.

        ```text
        above   --1--2--|  --1--2--|
        below   --1--2-------1--2--|   of repeat(1)
        ```

        It counts as ``retry`` does, so ``repeat(1)`` gives all elements twice. Elements that were
        asked for and have not come are asked for again, and nothing else (§1.1). Without a limit,
        an empty stream is subscribed to until somebody cancels.

        Reactor: ``repeat``; RxPY: ``repeat``, which counts the first subscription, too.

        Args:
            times: The most repetitions. Default: no limit.

        Raises:
            TypeError: ``times`` is not an ``int``.
            ValueError: ``times`` is negative.
        """
        return self.with_part(Repeat(times))

    def take_last(self, n: int, /) -> Self:
        """Deliver the last ``n`` elements, after upstream has completed.

        ```text
        above   --1--2--3--|
        below   -----------2--3--|   of take_last(2)
        ```

        Upstream is asked for everything at once. At most ``n`` elements are held; ``metrics_of``
        counts the others. An error comes at once, without the elements that are held.

        Reactor: ``takeLast``; RxPY: ``take_last``.

        Args:
            n: The most elements delivered, 1 or more.

        Raises:
            TypeError: ``n`` is not an ``int``.
            ValueError: ``n`` is less than 1.
        """
        return self.with_part(TakeLast(n))

    def take_until(self, other: Publisher[object], /) -> Self:
        """The elements of this stream until ``other`` gives an element, or completes.

        ```text
        above   --1--2--3--4--|
        other   ---------x
        below   --1--2---|
        ```

        ``other`` is subscribed to first, and asked for one element, with or without demand. When it
        signals, this stream is cancelled, and elements on their way are dropped (§2.8). Nothing is
        asked for that was not asked of this stream (§1.1). An error of ``other`` ends the stream.

        Reactor: ``takeUntilOther``; RxPY: ``take_until``, which goes on when ``other`` completes.

        Args:
            other: A publisher, which need not keep the rules.

        Raises:
            TypeError: ``other`` has no ``subscribe``.
        """
        return self.with_part(TakeUntil(other))

    # -- observers -------------------------------------------------------------------------------

    def do_on_subscribe(self, fn: Callable[[Subscription], object], /) -> Self:
        """Call ``fn(subscription)`` before ``on_subscribe`` is passed on. See ``do_on_next``.

        Args:
            fn: A plain function.
        """
        return self._observe("on_subscribe", fn)

    def do_on_next(self, fn: Callable[[T_co], object], /) -> Self:
        """Call ``fn(element)`` before each element is passed on.

        The result of an observer is ignored. Its exceptions go to ``sys.unraisablehook``, and the
        stream goes on.

        Args:
            fn: A plain function. It is called on the thread that the signal comes on.

        Raises:
            TypeError: ``fn`` cannot be called, or is ``async``.
        """
        check_sync("do_on_next", "fn", fn)
        return self.with_part(Stage(("do_on_next", fn)))

    def do_on_error(self, fn: Callable[[BaseException], object], /) -> Self:
        """Call ``fn(error)`` before ``on_error`` is passed on. See ``do_on_next``.

        Args:
            fn: A plain function.
        """
        return self._observe("on_error", fn)

    def do_on_complete(self, fn: Callable[[], object], /) -> Self:
        """Call ``fn()`` before ``on_complete`` is passed on. See ``do_on_next``.

        Args:
            fn: A plain function.
        """
        return self._observe("on_complete", fn)

    def do_on_request(self, fn: Callable[[int], object], /) -> Self:
        """Call ``fn(n)`` before each ``request(n)`` from below is passed on. See ``do_on_next``.

        Args:
            fn: A plain function.
        """
        return self._observe("on_request", fn)

    def do_on_cancel(self, fn: Callable[[], object], /) -> Self:
        """Call ``fn()`` before the first ``cancel()`` from below is passed on. See ``do_on_next``.

        Args:
            fn: A plain function.
        """
        return self._observe("on_cancel", fn)

    def do_finally(self, fn: Callable[[], object], /) -> Self:
        """Call ``fn()`` once, after the end or a ``cancel()`` was passed on. See ``do_on_next``.

        ```text
        above   --1--2--|
        below   --1--2--|fn()
        ```

        ``fn`` is called as well when a subscriber raises (§2.13).

        Reactor: ``doFinally``; RxPY: ``finally_action``.

        Args:
            fn: A plain function.
        """
        return self._observe("finally", fn)

    def log(self, name: str = "rstreams_fast", /, *, level: int = logging.DEBUG) -> Self:
        """Log each signal, each request and the cancel by ``logging.getLogger(name)``.

        ```text
        above   --1--2--|
        below   --1--2--|   on_subscribe(...), request(2), on_next(1), on_next(2), on_complete()
        ```

        Nothing else changes (see ``do_on_next``). If the logger leaves out this level when the
        stream is composed, ``log`` costs nothing.

        Reactor: ``log``; RxPY: ``do``.

        Args:
            name: The name of the logger.
            level: The level of the records.

        Raises:
            TypeError: ``level`` is not an ``int``.
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
        """Name the stream above: in errors, in ``describe()`` and in the metrics.

        ```text
        above   --1--2--X
        below   --1--2--X   whose notes say: it passed 'orders'
        ```

        An error that passes gets a note, once, however many subscribers there are. The name has a
        line of its own in ``describe()`` and among the metrics of ``metrics_of``, where the
        boundaries above follow. Nothing else changes.

        Reactor: ``name``, ``checkpoint``.

        Args:
            name: The name, a ``str``.

        Raises:
            TypeError: ``name`` is not a ``str``.
        """
        return self.with_part(Named(name))

    def on_discard(self, hook: Callable[[Any], object], /) -> Self:
        """Call ``hook(element)`` for each element that is dropped above: so the element can be
        released.

        ```text
        above   --1--2--3--4--cancel
        filter  -----2-----4--
        hook      1     3         and the elements that wait in buffers
        ```

        Each element that comes into being above is delivered below, or the hook is called for it,
        once, with the form that it has where it is dropped. A filter, ``skip``, ``take_while``, an
        overflow strategy and a switch drop at once. Elements in a buffer or a batch, and results of
        ``map_async``, are dropped when the stream ends, also by a cancel or an error, or when their
        inner publisher ends. An element that a function has turned into another, as ``map`` does,
        belongs to the function; if the function raises, returns ``None`` or is cancelled, its
        element is discarded. So is the rest of a list that ``unbatch`` takes apart.
        ``combine_latest`` and ``with_latest_from`` may deliver an element several times; ``expand``
        expands the elements that were delivered.

        The hook is not called for elements that publishers of other libraries hold; for elements
        that subscribers share, by ``multicast``, ``replay`` or a processor; for elements that go
        into windows and groups, by ``window``, ``group_by`` or ``skip=`` of ``batch``; nor for
        elements below the hook, such as those that ``iterate`` has read ahead. Each element is
        accounted for until it leaves, which takes time; a stream without a hook has no such costs.

        Reactor: ``doOnDiscard``.

        Args:
            hook: A plain function. It may be called on any thread, and gets a batch or a pair as a
                whole. Its exceptions go to ``sys.unraisablehook``.

        Raises:
            TypeError: ``hook`` cannot be called, or is ``async``.
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
        """Run the stages below on ``executor``, behind a bounded buffer (§2.2).

        ``request``, ``cancel`` and ``subscribe`` return at once: upstream is asked from the
        executor. An error overtakes the elements in the buffer, unless ``delay_error`` is set, or
        unless a ``take`` below needs no more elements than have come. Such a ``take(n)`` also
        narrows the buffer: at most ``n`` elements are asked for. An executor that refuses the work
        cancels upstream, and ``on_error`` signals the refusal.

        Args:
            executor: A thread-based ``concurrent.futures.Executor``, an asyncio event loop, or
                ``"caller"``. Default: a worker thread that lives as long as the subscription.
            prefetch: The most elements that are asked for, in the buffer, or being delivered,
                together. More are asked for when three quarters are consumed.
            max_bytes: The most bytes held, counted by ``weigher``. The weight of an element is not
                known before it has come, so elements are asked for one by one, while fewer than
                ``max_bytes`` are held: the bound is ``max_bytes`` plus one element. A single
                element larger than ``max_bytes`` passes. Default: no bound in bytes.
            weigher: ``weigher(element)`` gives the bytes of an element; needed with ``max_bytes``.
            delay_error: Signal an error after the elements in the buffer, not at once.

        Raises:
            TypeError: An argument has the wrong type, or ``executor`` runs processes.
            ValueError: A bound is less than 1, or only one of ``max_bytes`` and ``weigher`` is
                given.
        """
        return self.with_part(AsyncBoundary(executor, prefetch, max_bytes, weigher, delay_error))

    def subscribe_on(
        self,
        executor: Executor | asyncio.AbstractEventLoop | str | None = None,
    ) -> Self:
        """Subscribe to the stream above, and ask it for elements, on ``executor``.

        ``subscribe`` and ``request`` return at once, and a synchronous source works on
        ``executor``. Only the ``subscribe_on`` closest to the source matters.

        Args:
            executor: As in ``publish_on``. Default: a worker thread that lives as long as the
                subscription.

        Raises:
            TypeError: ``executor`` is none of these.
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
        """Ask upstream for everything at once, hold elements until they are asked for, and drop by
        ``strategy``.

        With ``Overflow.ERROR`` upstream is asked when the subscriber first asks. Elements that are
        dropped are counted (see ``metrics_of``). Every end, an error too, comes after the elements
        that are held. A source that is an iterator is run to its end within ``subscribe``: give it
        a thread by ``subscribe_on`` if that takes long.

        Args:
            strategy: What becomes of an element that finds no room; see ``Overflow``.
            capacity: The most elements held. Default: 1024, or 1 for ``Overflow.LATEST``.
            on_drop: ``on_drop(element)`` is called for each element that is dropped, on the thread
                that upstream signals on. Its exceptions go to ``sys.unraisablehook``.

        Raises:
            TypeError: An argument has the wrong type.
            ValueError: ``capacity`` is less than 1, or does not suit ``strategy``.
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
        """One subscription to the stream above, shared by all subscribers below.

        All subscribers get the same elements, and may be ahead of each other by at most
        ``buffer_size``. A subscriber that comes late starts at the oldest element that is still
        held for another subscriber. See ``MulticastProcessor`` for the rest.

        Args:
            buffer_size: The most elements between the fastest and the slowest subscriber.
            slow: With ``"gate"`` the source is not asked while the slowest subscriber lags by
                ``buffer_size``. With ``"drop"`` the fastest sets the pace, and a subscriber that
                lags by more gets a ``BufferOverflowError``.
            min_subscribers: The number of subscribers at which the source is subscribed to.
            on_last_cancel: What happens when the last subscriber has cancelled. ``"shut_down"``
                cancels the source, and a later subscriber gets a ``ShutDownError``. ``"keep"``
                leaves the source waiting, unasked, for the next subscriber. ``"restart"`` cancels
                the source and subscribes to it anew for the next subscriber, also after its end.
            delay_error: Signal an error after the elements in the buffer, not at once.

        Raises:
            TypeError: An argument has the wrong type.
            ValueError: An argument has a value that is none of these.
        """
        options = MulticastOptions(buffer_size, slow, delay_error)
        return self.with_part(Multicast(options, min_subscribers, on_last_cancel))

    def share(self, *, buffer_size: int = MULTICAST_BUFFER) -> Self:
        """``multicast`` that begins with the first subscriber, and anew after the last has left.

        Args:
            buffer_size: The most elements between the fastest and the slowest subscriber.
        """
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
        """``multicast`` that keeps elements for subscribers that come late, also after the end.

        At least one of ``count``, ``max_bytes`` and ``seconds`` must be given; the bound that keeps
        the fewest elements counts. See ``ReplayProcessor`` for the rest.

        Args:
            count: Keep the last ``count`` elements.
            max_bytes: Keep as many of the last elements as weigh at most ``max_bytes`` together.
            weigher: ``weigher(element)`` gives the bytes of an element; needed with ``max_bytes``.
            seconds: Keep the elements of the last ``seconds``.
            buffer_size: As in ``multicast``.
            slow: As in ``multicast``.
            min_subscribers: As in ``multicast``.
            on_last_cancel: As in ``multicast``.
            delay_error: As in ``multicast``.
            timer: The clock of ``seconds``. Default: the timer of this process.

        Raises:
            TypeError: An argument has the wrong type.
            ValueError: No bound is given, or an argument has a wrong value.
        """
        bounds = ReplayBounds(count, max_bytes, weigher, seconds, timer)
        options = MulticastOptions(buffer_size, slow, delay_error)
        return self.with_part(Replay(bounds, options, min_subscribers, on_last_cancel))

    def _observe(self, signal: str, fn: Callable[..., object]) -> Self:
        check_sync(f"do_{signal}", "fn", fn)
        return self.with_part(Peek(signal, fn))
