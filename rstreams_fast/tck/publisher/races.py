"""Checks of requests and cancels that come while a publisher goes idle.

A check repeats the request or cancel in many rounds, in each round at another moment.
"""

# ruff: noqa: N802

from __future__ import annotations

import functools
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rstreams_fast.tck.environment import Environment
from rstreams_fast.tck.line_trace import LineTrace
from rstreams_fast.tck.probes import ProbeSubscriber
from rstreams_fast.tck.publisher.sizes import ROUNDS
from rstreams_fast.tck.sweep import SecondThread, pause, poll_until, stay_busy, sweep
from rstreams_fast.tck.verification import STRICT, check

if TYPE_CHECKING:
    from rstreams_fast.tck.publisher.verification import PublisherVerification as Kit

__all__ = ["RaceChecks"]

#: Requests by which the kit measures the time (window) in which a publisher goes idle.
_TRIALS = 8
#: Seconds in which a publisher with its own thread usually goes idle after an element; and the
#: longest time that is measured for other publishers.
_WINDOW, _LONGEST_WINDOW = 0.001, 0.005
#: Calls are made in the window and a little after it: up to this multiple of its length.
_WINDOW_MULTIPLE = 1.25
#: The second thread calls up to this many seconds before the end of on_next. Then it waits for the
#: GIL, and gets it soon afterwards, when the first thread may be at any step.
_SECONDS_BEFORE_END = 0.0001
#: The part of the rounds in which the second thread comes before the end of on_next.
_PART_BEFORE_END = 1 / 3
#: How long a sender may take from an element to the last line that is counted (seconds).
_SECONDS_TO_LAST_LINE = 0.001
#: The most lines that are all tried, one after the other; and the most that are tried at all.
_FEW_LINES, _MOST_LINES = 24, 200
#: Elements after each of which the lines are counted.
_COUNTED_ELEMENTS = 3
#: The part of the rounds in which the second thread asks before on_subscribe has returned.
_PART_WITHIN_ON_SUBSCRIBE = 1 / 2
#: The number of on_next calls that request one more element each.
_REQUESTS_WITHIN_ON_NEXT = 3
#: The most elements of a sweep; and the fewest, even if ``max_elements`` is less.
_MOST_ELEMENTS, _FEWEST_ELEMENTS = 600, 48
#: Subscribers of a sweep in which each is used once.
_SUBSCRIBERS = 40


class RaceChecks:
    """Checks of §1.7, §3.8 and §3.12 at the moment when the publisher has no more work."""

    @check("3.8", needs="elements on request")
    def beyond_spec308_aRequestMustWakeAnIdlePublisher(self: Kit) -> None:
        """Hundreds of elements are requested, each at another time after the last one. All come.
        Look at how the sending thread stops: it must see that the demand is 0, and mark itself as
        stopped, in one step."""
        self._needs_threads()
        senders: set[int] = set()
        subscriber = self._subscriber_of(
            self._elements(), on_next=lambda _me: senders.add(threading.get_ident())
        )
        for number, part in enumerate(sweep(self.environment), 1):
            if number > self._elements():
                break
            if number > _TRIALS and senders == {threading.get_ident()}:
                break  # the publisher is always idle when request returns
            subscriber.request(1)
            self._expect_elements_so_far(subscriber, number)
            pause(_WINDOW * part**3)

    @check("3.8", STRICT, needs="elements on request")
    def beyond_spec308_twoThreadsThatAskShouldBothBeServed(self: Kit) -> None:
        """A thread requests while the publisher goes idle after another thread's element. Each
        request brings its element, hundreds of times.
        Look at how the sending thread stops: it must see that the demand is 0, and mark itself as
        stopped, in one step. (By §2.7 a subscriber should not call request in two threads at
        once.)"""
        with self._idle_window() as idle:
            subscriber = self._subscriber_of(self._elements(), on_next=idle.on_next)
            for number, part in enumerate(sweep(self.environment), 1):
                if 2 * number > self._elements():
                    break
                idle.arm(lambda: subscriber.request(1), part)
                subscriber.request(1)
                self._expect_elements_so_far(subscriber, 2 * number - 1)
                idle.join("request(1) returns")
                self._expect_elements_so_far(subscriber, 2 * number)

    @check("3.8", STRICT, needs="elements on request")
    def beyond_spec308_aRequestAtAnyStepOfTheSenderShouldCount(self: Kit) -> None:
        """After an element the kit stops the sending thread at one line, and another thread
        requests. The request counts.
        Look at values that the sending thread has read before that line: they may have changed.
        (The kit sees only lines in Python. By §2.7 a subscriber should not call request in two
        threads at once.)"""
        self._needs_threads()
        with SecondThread.running(self.environment, "3.16") as second:
            stops = _SenderStops(second)
            subscriber = self._subscriber_of(self._elements(), on_next=stops.on_next)
            self._count_lines(stops, subscriber)
            for step in stops.line_numbers(self.environment):
                asked = subscriber.requested
                if asked + 2 > self._elements():
                    break
                stops.arm(lambda: subscriber.request(1), step)
                subscriber.request(1)
                self._expect_elements_so_far(subscriber, asked + 1)
                stops.join("request(1) returns")
                self._expect_elements_so_far(subscriber, asked + 2, stops.place)

    def _count_lines(self: Kit, stops: _SenderStops, subscriber: ProbeSubscriber) -> None:
        """Let the sender send some elements, and see how many lines it executes after each."""
        for number in range(1, min(_COUNTED_ELEMENTS, self.max_elements) + 1):
            stops.count()
            subscriber.request(1)
            self._expect_elements_so_far(subscriber, number)
            pause(_SECONDS_TO_LAST_LINE)
            stops.end()

    @check("1.7", STRICT, needs="on_complete")
    def beyond_spec107_theEndShouldComeOnceWhileTwoThreadsAsk(self: Kit) -> None:
        """While one thread's request brings the last element and the end, another thread requests.
        Look at the end of the source: only one thread may send the terminal signal. (By §2.7
        a subscriber should not call request in two threads at once.)"""
        subscribers = []
        with self._idle_window() as idle:
            for part in sweep(self.environment, most=_SUBSCRIBERS):
                subscriber = self._subscriber_of(1, completes=True, on_next=idle.on_next)
                subscribers.append(subscriber)
                idle.arm(functools.partial(subscriber.request, 1), part)
                subscriber.request(1)
                self._expect_elements_so_far(subscriber, 1)
                idle.join("request(1) returns")
                subscriber.wait_for_terminal("1.5", "on_complete after the only element")
        self._expect_no_more(subscribers, "1.7", "one terminal signal")

    @check("3.12", needs="elements on request")
    def beyond_spec312_aCancelWhileThePublisherGoesIdleMustHold(self: Kit) -> None:
        """A thread cancels while the publisher goes idle: later requests bring nothing.
        Look at the mark that the publisher is idle: it must not overwrite the cancelled state, nor
        use what cancel clears."""
        subscribers = []
        with self._idle_window() as idle:
            for part in sweep(self.environment, most=_SUBSCRIBERS):
                subscriber = self._subscriber_of(3, on_next=idle.on_next)
                subscribers.append(subscriber)
                idle.arm(subscriber.cancel, part)
                subscriber.request(1)
                self._expect_elements_so_far(subscriber, 1)
                idle.join("cancel() returns")
        self._expect_settled(*subscribers)
        for subscriber in subscribers:
            subscriber.read_all()
            subscriber.request(1)
        self._expect_no_more(subscribers, "3.6", "nothing for a request after cancel")

    @check("3.8", STRICT, needs="elements on request")
    def beyond_spec308_demandFromSignalsAndAThreadShouldAddUp(self: Kit) -> None:
        """on_subscribe, on_next and another thread call request at once: each request counts.
        Look at how demand is added, and at requests before on_subscribe has returned. (By §2.7 a
        subscriber should not call request in two threads at once.)"""
        with self._idle_window() as idle:
            for part in sweep(self.environment, most=ROUNDS):

                def on_subscribe(me: ProbeSubscriber, part: float = part) -> None:
                    idle.arm(lambda: me.request(1, 1, 1), part)
                    me.request(1)
                    idle.on_next(me)
                    if part < _PART_WITHIN_ON_SUBSCRIBE:
                        idle.wait_briefly()
                    me.request(1)

                def on_next(me: ProbeSubscriber) -> None:
                    if me.received <= _REQUESTS_WITHIN_ON_NEXT:
                        me.request(1)

                subscriber = self._subscriber_of(20, on_subscribe=on_subscribe, on_next=on_next)
                idle.join("request(1) returns")
                self._expect_elements_so_far(subscriber, 2 + 3 + _REQUESTS_WITHIN_ON_NEXT)

    # -- rounds ------------------------------------------------------------------------------------

    def _elements(self: Kit) -> int:
        return min(_MOST_ELEMENTS, max(_FEWEST_ELEMENTS, self.max_elements))

    @contextmanager
    def _idle_window(self: Kit) -> Iterator[_IdleWindow]:
        """Measure how long the publisher takes to go idle; start a thread for calls meanwhile."""
        self._needs_threads()
        with SecondThread.running(self.environment, "3.16") as second:
            idle = _IdleWindow(second)
            subscriber = self._subscriber(self._publisher_up_to(_TRIALS), on_next=idle.on_next)
            for number in range(1, min(_TRIALS, self.max_elements) + 1):
                subscriber.request(1)
                idle.measure()
                self._expect_elements_so_far(subscriber, number)
            subscriber.cancel()
            yield idle

    @staticmethod
    def _expect_elements_so_far(subscriber: ProbeSubscriber, count: int, place: str = "") -> None:
        """Wait for ``count`` elements; usually return within microseconds after the last one."""
        if not poll_until(lambda: subscriber.received >= count):
            expected = f"{count} elements for as many requests"
            if place:
                expected += f" (the last request came before {place})"
            subscriber.wait_for_elements(count, "3.8", expected)

    def _expect_no_more(
        self: Kit, subscribers: list[ProbeSubscriber], rule: str, expected: str
    ) -> None:
        """Expect no unread signals, except for subscribers whose stream has ended.

        (These subscribers flag a second terminal signal themselves.)
        """

        def noise() -> list[ProbeSubscriber]:
            return [each for each in subscribers if each.unread and each.terminal is None]

        self.environment.expect_quiet(
            noise, rule, expected, lambda: next((each.came() for each in noise()), "nothing")
        )


class _IdleWindow:
    """The short time in which a publisher goes idle, after the end of an ``on_next``."""

    def __init__(self, second: SecondThread) -> None:
        self.second = second
        self._last: tuple[int, float] = (0, 0.0)  # the thread and the time of the last on_next
        self._measured: list[float] = []
        self._busy_seconds = 0.0
        self._round = 0

    def on_next(self, _subscriber: ProbeSubscriber) -> None:
        """The reaction to each ``on_next``. The first one in a round fires the second thread."""
        self._last = threading.get_ident(), time.perf_counter()
        if self.second.is_armed:
            self.second.fire(self._round)
            stay_busy(self._busy_seconds)

    def measure(self) -> None:
        """Note the time since the last ``on_next``, if it ran in this thread.

        Call this when ``request`` has returned.
        """
        thread, came = self._last
        if thread == threading.get_ident():
            self._measured.append(min(time.perf_counter() - came, _LONGEST_WINDOW))

    def arm(self, call: Callable[[], object], part: float) -> None:
        """Let the second thread make ``call`` in this round.

        ``part`` (0 to 1) chooses the moment of the call within the time that was measured.
        """
        before = part < _PART_BEFORE_END
        self._busy_seconds = _SECONDS_BEFORE_END * (1 - part / _PART_BEFORE_END) if before else 0.0
        part = 0.0 if before else (part - _PART_BEFORE_END) / (1 - _PART_BEFORE_END)
        if self._measured:
            after = statistics.median(self._measured) * _WINDOW_MULTIPLE * part
        else:
            after = _WINDOW * part**3  # not measured: most likely it goes idle soon
        self._round = self.second.arm(call, after)

    def wait_briefly(self) -> None:
        """Wait a short time for the second thread's call, which may itself wait for this thread."""
        self.second.wait_briefly(self._round)

    def join(self, expected: str) -> None:
        """Wait until the call of this round has returned.

        First wait for the ``on_next`` of this round: if it came late, it would fire the next round.
        """
        self.second.wait_until_fired()
        self.second.join(expected)


class _SenderStops:
    """Stops the sending thread at a line after ``on_next``, in each round at another line."""

    def __init__(self, second: SecondThread) -> None:
        self._second = second
        self._trace = LineTrace()
        self._lines = 0

    @property
    def place(self) -> str:
        """The line at which the sender was stopped."""
        return self._trace.place

    def on_next(self, _subscriber: ProbeSubscriber) -> None:
        """The reaction to each ``on_next``. The first one in a round starts to count lines."""
        self._trace.begin()

    def count(self) -> None:
        """Begin a round that only counts lines, and does not stop the sender."""
        self._trace = LineTrace()

    def end(self) -> None:
        self._trace.end()
        self._lines = max(self._lines, self._trace.lines)

    def line_numbers(self, environment: Environment) -> Iterator[int]:
        """Yield the number of each line, or of as many lines as there is time for."""
        for number, part in enumerate(sweep(environment, most=min(self._lines, _MOST_LINES)), 1):
            yield number if self._lines <= _FEW_LINES else 1 + int(part * self._lines)

    def arm(self, call: Callable[[], object], step: int) -> None:
        """Let the second thread call ``call`` while the sender is stopped at line ``step``."""

        def stop() -> None:
            self._second.fire(number)
            self._second.wait_briefly(number)

        number = self._second.arm(call, 0)
        self._trace = LineTrace(step, stop)

    def join(self, expected: str) -> None:
        """End the round.

        Do not wait long for the sender to be stopped: it may go idle before it reaches the line.
        """
        poll_until(lambda: not self._second.is_armed, _SECONDS_TO_LAST_LINE)
        self._second.join(expected)
        self._trace.end()
