"""``map_async``: calls a coroutine function for each element, several calls at a time.

``upstream -> ring -> calls -> results -> subscriber``. Everything to the right of the ring, and
every ``request`` to upstream, runs in callbacks of one event loop. A ``CallWindow`` makes the
calls: it starts the coroutine immediately, and makes an asyncio task only if the coroutine has to
wait.

``prefetch`` bounds the sum of requested elements, elements in the ring, running calls, and results
that wait for demand. So an element counts from its request until its result is delivered.
"""

from __future__ import annotations

import asyncio
import inspect
import reprlib
from collections.abc import Awaitable, Callable
from contextlib import suppress
from threading import get_ident
from time import perf_counter
from typing import Any

from rstreams_fast._checks import (
    MAX_CAPACITY,
    add_note,
    check_bool,
    check_capacity,
    check_count,
    check_sync,
    describe_callable,
    is_coroutine_function,
)
from rstreams_fast.api import UNBOUNDED, Publisher, Subscriber
from rstreams_fast.core import CallWindow, SpscRing
from rstreams_fast.errors import StageReturnedNoneError, WorkDroppedError, report_dropped
from rstreams_fast.runtime.awaiting import awaited_stream
from rstreams_fast.runtime.executors import Resource, Work, process_id
from rstreams_fast.runtime.loops import HeldLoop, check_loop, describe_loop, loop_resource
from rstreams_fast.runtime.parking import running_loop
from rstreams_fast.streams.engine.boundary import Boundary, InputRing, RingSubscriber
from rstreams_fast.streams.engine.custody import Custody
from rstreams_fast.streams.engine.defaults import next_burst, replenish_at
from rstreams_fast.streams.engine.metrics import BoundaryMetrics, Waits
from rstreams_fast.streams.engine.operator_subscriber import OperatorSubscriber
from rstreams_fast.streams.engine.signals import interrupts, report_late
from rstreams_fast.streams.engine.sink_subscriber import (
    is_async_cancellation,
    not_a_cancellation,
)
from rstreams_fast.streams.engine.stages import Need
from rstreams_fast.streams.engine.trampoline import OperatorPublisher

__all__ = ["MapAsync"]

CONCURRENCY = 64
"""Default of the argument ``concurrency``: the maximum number of calls that run at a time."""

ORDERED_PREFETCH_PER_CALL = 64
"""For ordered results, ``prefetch`` is by default this number times ``concurrency``.

A result must wait until all earlier results are delivered. So there must be room for the results of
many later calls while one call is slow: about 64 results for each concurrent call."""

PREFETCH_PER_CALL = 4
"""With ``ordered=False``, ``prefetch`` is by default this number times ``concurrency``."""

MAX_DEFAULT_PREFETCH = 65_536
"""The default of ``prefetch`` is at most this number, unless ``concurrency`` is larger."""


class MapAsync(Boundary):
    """The options of ``Stream.map_async``. See the docstring of that method."""

    operator = "map_async"
    #: How many calls are started before the first look at the clock. Their functions can be slow.
    first_calls = 1

    def __init__(
        self,
        fn: Callable[[Any], Awaitable[Any]],
        *,
        concurrency: int = CONCURRENCY,
        ordered: bool = True,
        prefetch: int | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
        key: Callable[[Any], Any] | None = None,
    ) -> None:
        if not callable(fn):
            raise TypeError(f"map_async(fn): fn must be callable, got {type(fn).__name__}")
        if inspect.isasyncgenfunction(fn):
            raise TypeError(
                f"map_async(fn): {describe_callable(fn)} is an asynchronous generator function, "
                "which gives many elements for one; fn must return one, by 'return'"
            )
        self.fn = fn if is_coroutine_function(fn) else _CheckedFunction(fn)
        self.name = describe_callable(fn)
        self.ordered = check_bool("ordered", ordered)
        concurrency = check_count("concurrency", concurrency, 1)
        if prefetch is None:
            most = max(MAX_DEFAULT_PREFETCH, min(concurrency, MAX_CAPACITY))
            prefetch = min(concurrency * self.prefetch_per_call(), most)
        self.prefetch = check_capacity("prefetch", prefetch)
        self.concurrency = min(concurrency, self.prefetch)
        check_loop(loop)
        self.loop = loop
        if key is not None:
            check_sync("map_async", "key", key)
        self.key = key
        self.where = describe_loop(loop)

    def prefetch_per_call(self) -> int:
        """Return a factor: ``prefetch`` is by default this factor times ``concurrency``."""
        return ORDERED_PREFETCH_PER_CALL if self.ordered else PREFETCH_PER_CALL

    def attach(self, upstream: Publisher[Any], /) -> Publisher[Any]:
        return self.attach_within(upstream, Need())

    def attach_within(self, upstream: Publisher[Any], need: Need, /) -> Publisher[Any]:
        return OperatorPublisher(upstream, _subscription, (self, need.total))

    def describe(self) -> str:
        order = "ordered" if self.ordered else "as they come"
        turns = "" if self.key is None else f", one of each {describe_callable(self.key)}"
        return (
            f"{self.operator}({self.name}): at most {self.concurrency} calls at once{turns} and "
            f"{self.prefetch} elements in flight, {order}, on {self.where}"
        )

    def resource(self) -> Resource:
        """Return the ``Resource`` that runs work on the event loop of the calls.

        Raises ``WorkDroppedError`` if the loop is closed.
        """
        return loop_resource(self.loop, "rstreams-fast-map-async")

    def window(self, custody: Custody | None, enter: Work, on_ready: Work) -> Any:  # noqa: ARG002
        """Return a new ``CallWindow``, which makes the calls and holds their results.

        Call this method on the event loop. ``custody`` records undelivered elements, for
        ``on_discard``. The window calls ``on_ready`` on the event loop when a result is ready. A
        subclass whose calls end on other threads calls ``enter`` there instead.
        """
        fn: Callable[..., Any] = (
            self.fn if custody is None else custody.wrap_coroutine_function(self.fn)
        )
        window = CallWindow(
            fn,
            loop=asyncio.get_running_loop(),
            on_ready=on_ready,
            concurrency=self.concurrency,
            capacity=self.prefetch,
            ahead=self.concurrency,
            ordered=self.ordered,
            key=self.key,
        )
        window.on_further_failure = _report_further
        return window


def _report_further(error: BaseException) -> None:
    """Report ``error`` to ``on_dropped_error``: a call failed before, or the stream has ended."""
    if isinstance(error, Exception) and not isinstance(error, WorkDroppedError):
        report_late(error)


def _note_element(error: BaseException, stage: str, element: Any) -> None:
    with suppress(Exception):  # ``repr(element)`` may raise: then add no note
        note = f"rstreams_fast: {stage} failed for the element {reprlib.repr(element)}"
        add_note(error, note)


class _CheckedFunction:
    """Calls ``fn``, and raises a ``TypeError`` if the result cannot be awaited."""

    __slots__ = ("_fn", "_name")

    def __init__(self, fn: Callable[[Any], Any]) -> None:
        self._fn = fn
        self._name = describe_callable(fn)

    def __call__(self, element: Any) -> Awaitable[Any]:
        result = self._fn(element)
        if not inspect.isawaitable(result):
            raise TypeError(
                f"map_async: {self._name} returned {type(result).__name__}, which cannot be "
                "awaited; use map(fn) for a synchronous function"
            )
        return result


def _subscription(
    subscriber: Subscriber[Any], options_and_total: tuple[MapAsync, int]
) -> _MapAsyncSubscription:
    options, total = options_and_total
    on_loop = options.resource()
    try:
        return _MapAsyncSubscription(subscriber, options, on_loop, total)
    except MemoryError:  # too little memory for the ring
        on_loop.close()
        raise


class _MapAsyncSubscription(OperatorSubscriber, RingSubscriber):
    """The subscription of ``map_async``. It makes calls, and delivers results, on the event loop.

    Any thread may call ``request`` and ``cancel``, and upstream may signal on any thread.
    """

    __slots__ = (
        "_awaited",
        "_calls",
        "_closing",
        "_delivered",
        "_ending",
        "_failure_reported",
        "_input",
        "_loop",
        "_options",
        "_replenish_at",
        "_requestable",
        "_requesting_thread",
        "_stopped",
        "_total",
        "_window",
        "ring",
    )

    def __init__(
        self, subscriber: Subscriber[Any], options: MapAsync, on_loop: Resource, total: int
    ) -> None:
        self._loop = HeldLoop(on_loop)
        super().__init__(subscriber, self._loop)
        self._begin_turns()
        self._total = total
        self._delivered = 0
        self._options: MapAsync | None = options
        self._input = InputRing(SpscRing(options.prefetch))
        self.ring: SpscRing | None = self._input.elements
        self._window: Any = None
        # ``_ending``: the ``CallWindow``, if the stream has ended and cancelled calls are still
        # running. Otherwise None.
        self._ending: Any = None
        self._requestable = options.prefetch  # how many more elements may be requested now
        spare = options.prefetch - options.concurrency
        # ``_replenish_at``: after so many delivered results, the drain (the code that delivers
        # results) requests as many new elements. If possible, at least ``concurrency`` requested
        # elements are then not delivered yet. So the calls can go on until the new elements come.
        self._replenish_at = max(1, min(replenish_at(options.prefetch), spare))
        self._requesting_thread = 0  # the id of the thread that calls ``request`` now; 0: none
        self._stopped = False
        # ``_calls``: the maximum number of calls that are started without a pause.
        self._calls = options.first_calls
        self._failure_reported = False  # whether the failure of a call was signalled or reported
        self._waits = Waits(options.describe(), options.prefetch)
        self._awaited = awaited_stream()
        # The code that awaits the stream waits for this future. It is set after the last call.
        self._closing: asyncio.Future[None] | None = None

    # -- signals from upstream ---------------------------------------------------------------------

    def _begin(self) -> None:
        # ``_wip`` lets one thread at a time deliver results. It is held from the start until
        # on_subscribe has returned, so that no result is delivered before.
        if self._signal_on_subscribe() and not self._wip.leave():
            self._start_drain()

    def metrics(self) -> tuple[BoundaryMetrics, ...]:
        options, window = self._options, self._window
        waiting = 0 if window is None else window.pending
        most = 0 if options is None else options.prefetch
        held = min(len(self._input.elements) + waiting, most)
        return (self._waits.metrics(self._demand.value, held), *super().metrics())

    def on_next(self, element: Any, /) -> None:
        if self._add_element(element, self._input.accept):
            self.on_burst()

    def on_error(self, error: BaseException, /) -> None:
        """Signal the error immediately, without the results that are not delivered yet.

        But if downstream uses at most ``_total`` elements (as ``take(n)`` does), and upstream has
        sent ``_total`` elements, the results are delivered first. ``_work`` decides this.
        """
        if self._total == UNBOUNDED:
            super().on_error(error)
        else:
            self._keep_error(error)

    def on_burst(self) -> None:
        """Start the drain, which takes the new elements out of the ring and delivers results.

        Do nothing if the drain itself makes this call, within its ``request`` to upstream: the
        drain looks at the ring when ``request`` has returned.
        """
        if self._requesting_thread != get_ident():
            self._enter()

    # -- delivering elements -----------------------------------------------------------------------

    def _start_drain(self) -> None:
        if self._window is None and (self._demand.value < 0 or self._empty()):
            self._drain()  # there is only the end to signal, which needs no event loop
        else:
            super()._start_drain()

    def _empty(self) -> bool:
        return self._completed and not self._input.elements

    def _work(self) -> bool:
        demand = self._demand.value
        if demand < 0:
            return self._act_on_end()
        window = self._window
        if self._late_error is not None and self._count_received(window) < self._total:
            return self._end_late()
        if window is None:
            if self._empty():
                return self._end()
            if demand == 0:
                return False  # the subscriber has made no request yet
            window = self._open()
            if window is None:
                return self._act_on_end()
        self._waits.end()
        # Read ``_completed`` before the ring. In the other order, elements and the completion could
        # arrive between the two reads, and these elements would be lost.
        completed = self._completed
        most = min(demand, self._burst)
        delivered = 0
        if most and window.pending:
            started = perf_counter()
            delivered = self._deliver(window, most)
            # A single element says nothing about a larger burst. So save the time for the clock.
            if delivered > 1 or self._burst == 1:
                full = delivered >= self._burst
                self._burst = next_burst(self._burst, perf_counter() - started, full=full)
        if self._stopped:
            return self._act_on_end()
        if window.failure is not None and (delivered < most or most == 0):
            return self._signal_call_failure(window)
        # Make the request before ``submit_from`` starts calls. A synchronous upstream sends its
        # elements before ``request`` returns, so ``submit_from`` can start calls for them, too.
        self._delivered += delivered
        self._requestable += delivered
        n = self._requestable if self._requestable >= self._replenish_at else 0
        self._requestable -= n
        self._requesting_thread = get_ident()
        asked = self._request_for_a_turn(n)
        self._requesting_thread = 0
        elements = self._input.elements
        started = perf_counter()
        called = window.submit_from(elements, self._calls)
        if called > 1 or self._calls == 1:
            full = called >= self._calls
            self._calls = next_burst(self._calls, perf_counter() - started, full=full)
        if self._stopped:
            return self._act_on_end()
        if completed and not window.pending and not elements:
            return self._end()
        if delivered or called or asked:
            return True
        # ``arm`` makes the ring buffer call ``on_burst`` when upstream adds an element. Otherwise
        # upstream calls ``on_burst`` only after several elements, so the first might wait long.
        self._waits.begin(for_demand=demand == 0)
        return len(elements) == 0 and not elements.arm(self.on_burst)

    def _count_received(self, window: Any) -> int:
        """Return how many elements upstream has sent."""
        pending = 0 if window is None else window.pending
        return int(self._delivered + pending + len(self._input.elements))

    def _end(self) -> bool:
        """Signal upstream's completion or error. Call this when all results are delivered."""
        return self._complete() if self._late_error is None else self._end_late()

    def _open(self) -> Any:
        options = self._options
        if options is not None:
            self._window = options.window(self.custody, self._enter, self._on_ready)
            # There may be no event loop: ``map_blocking`` also uses this method, and may deliver
            # its results on a plain thread.
            if self._awaited is not None and (loop := running_loop()) is not None:
                self._closing = loop.create_future()
                self._awaited.add(self._closing)
        return self._window

    def _on_ready(self) -> None:
        if self._ending is not None:
            self._end_calls(self._ending)
        # This method is called on the event loop, so deliver the results in this call.
        elif self._wip.enter():
            self._turn()

    def _deliver(self, window: Any, most: int) -> int:
        subscriber = self._subscriber
        if subscriber is None:
            return 0
        delivered = 0
        ring = result = None
        try:
            if isinstance(subscriber, RingSubscriber) and (ring := subscriber.ring) is not None:
                # ``take_into`` stops before a result that is None. The loop below takes this result
                # and ends the stream with an error.
                delivered = window.take_into(ring, most)
                if delivered:
                    subscriber.on_burst()
            for result in window.take(most - delivered) if delivered < most else ():
                if result is None:
                    self._fail(self._none_error())
                    # Stop here even if ``_stopped`` is false: another thread may be ending the
                    # stream now, and set it later.
                    break
                if self._stopped:
                    break
                delivered += 1
                subscriber.on_next(result)
        except Exception as raised:
            if interrupts(raised, subscriber.on_next):
                self._fail(raised)
            else:
                try:
                    if self._demand.cancel():
                        self._stop()
                finally:
                    report_dropped(raised, "§2.13: on_next raised")
        finally:
            ring = result = None
            del subscriber  # drop the subscriber: an error's traceback would keep it alive (§3.13)
        if delivered:
            self._demand.fulfil(delivered)
        return delivered

    def _none_error(self) -> StageReturnedNoneError:
        options = self._options
        what = "the function" if options is None else f"{options.name}, that of {options.operator},"
        return StageReturnedNoneError(f"§2.13: {what} returned None, which is not an element")

    def _signal_call_failure(self, window: Any) -> bool:
        options = self._options
        if window.failure is not None:
            self._failure_reported = True
            element, error = window.failure
            error = not_a_cancellation(error, "a function" if options is None else options.name)
            if options is not None and element is not None:
                _note_element(error, f"{options.operator}({options.name})", element)
            del element
            self._fail(error)
        return self._act_on_end()

    def _stop(self) -> None:
        self._stopped = True
        window = self._window
        if window is not None:
            window.permits.cancel()  # any thread may do this; no more calls start
        super()._stop()

    def _interrupted(self, leaving: BaseException) -> None:
        window = self._window
        if window is not None and window.failure is not None and window.failure[1] is leaving:
            self._failure_reported = True  # the error of a call propagates, and ends the stream
        super()._interrupted(leaving)

    def _refused(self, error: BaseException) -> None:
        # The event loop runs no more work, so it cannot cancel running calls. Set ``_window`` to
        # None, so that ``_drop_references`` does not try to cancel them.
        window, self._window = self._window, None
        if window is not None:
            window.permits.cancel()
            self._report_failure(window)
            if not window.running and process_id() == self._pid:
                window.cancel()
        super()._refused(error)

    def _drop_references(self) -> None:
        super()._drop_references()
        self.ring = None
        self._input.drop()
        self._options = None
        window = self._window
        if window is None:
            self._loop.release()
        else:
            # ``_stop``, which forbids new calls of the ``CallWindow``, may run later, on another
            # thread, and then find that ``_window`` is None. So forbid new calls here, too.
            window.permits.cancel()
            self._window = None
            self._report_failure(window)
            window.cancel()
            self._end_calls(window)

    def _report_failure(self, window: Any) -> None:
        """Pass a call's error to ``on_dropped_error``, if the stream ends without signalling it.

        ``window`` is the ``CallWindow``, which stores the first error of a call.
        """
        failure = window.failure
        if (
            failure is not None
            and not self._failure_reported
            and not is_async_cancellation(failure[1])
        ):
            report_late(failure[1])

    def _end_calls(self, window: Any) -> None:
        """If no cancelled call is still running, let the event loop close, and set ``_closing``.

        The code that awaits the stream waits for the future ``_closing``. ``window`` is the
        ``CallWindow`` that has started the calls. If a call is still running, the window calls
        ``_on_ready`` at the end of each call, and ``_on_ready`` calls this method again.
        """
        if window.running:
            window.take(0)  # take(0) makes the window call _on_ready when a call ends
            self._ending = window
        else:
            self._ending = None
            self._loop.release()
            if self._closing is not None and not self._closing.done():
                self._closing.set_result(None)
