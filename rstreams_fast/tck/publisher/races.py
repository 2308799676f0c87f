"""Checks of requests and cancels that come while a publisher goes idle.

A publisher goes idle when it has sent all requested elements and stops its sending loop. Each check
repeats the request or cancel in many *rounds*, in each round at another moment. In most checks the
kit's *second thread* (a ``SecondThread``) makes this request or cancel after ``on_next`` begins.
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

#: The kit requests this many elements to measure how long a publisher takes to go idle.
_TRIALS = 8
#: A publisher with its own thread usually goes idle within ``_WINDOW`` seconds after an element.
#: For other publishers the kit measures this time, up to ``_LONGEST_WINDOW`` seconds.
_WINDOW, _LONGEST_WINDOW = 0.001, 0.005
#: The second thread calls at most this multiple of the measured time after on_next.
_WINDOW_MULTIPLE = 1.25
#: The second thread calls up to this many seconds before the end of on_next. Then it waits for the
#: GIL, and gets it soon afterwards. The thread that ran on_next may be at any step by then.
_SECONDS_BEFORE_END = 0.0001
#: In this fraction of the rounds, the second thread makes its call before the end of on_next.
_PART_BEFORE_END = 1 / 3
#: The kit counts the sending thread's lines for this many seconds after an element.
_SECONDS_TO_LAST_LINE = 0.001
#: If the sending thread executes up to ``_FEW_LINES`` lines after an element, the kit stops the
#: thread at each of them. Otherwise the kit stops it at up to ``_MOST_LINES`` lines, chosen evenly.
_FEW_LINES, _MOST_LINES = 24, 200
#: The kit counts the sending thread's lines after each of this many elements.
_COUNTED_ELEMENTS = 3
#: In this fraction of the rounds, the second thread requests before on_subscribe has returned.
_PART_WITHIN_ON_SUBSCRIBE = 1 / 2
#: The number of on_next calls that request one more element each.
_REQUESTS_WITHIN_ON_NEXT = 3
#: A check needs ``max_elements`` elements, but at most ``_MOST_ELEMENTS``. It does not apply if
#: ``max_elements`` is less than ``_FEWEST_ELEMENTS``.
_MOST_ELEMENTS, _FEWEST_ELEMENTS = 600, 48
#: The largest number of rounds in a check that uses a new subscriber in each round.
_SUBSCRIBERS = 40


class RaceChecks:
    """Checks of §1.7, §3.8 and §3.12 at the moment when the publisher has no more work."""

    @check("3.8", needs="elements on request")
    def beyond_spec308_aRequestMustWakeAnIdlePublisher(self: Kit) -> None:
        """Hundreds of elements are requested one by one, each at another time after the previous
        element. All come.
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
                break  # each element came within request: no thread goes idle later
            subscriber.request(1)
            self._expect_elements_so_far(subscriber, number)
            pause(_WINDOW * part**3)

    @check("3.8", STRICT, needs="elements on request")
    def beyond_spec308_twoThreadsThatAskShouldBothBeServed(self: Kit) -> None:
        """A thread requests while the publisher goes idle after another thread's element. Each
        request brings its element, hundreds of times.
        Look at how the sending thread stops: it must see that the demand is 0, and mark itself as
        stopped, in one step. (By §2.7 a subscriber's requests should not overlap.)"""
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
        """After an element, the kit stops the sending thread at a line, and another thread requests
        an element. The requested element comes.
        Look at values that the sending thread has read before that line: they may have changed.
        (The kit sees only lines in Python. By §2.7 a subscriber's requests should not overlap.)"""
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
        """Count the lines that the sending thread executes after an element, for some elements."""
        for number in range(1, min(_COUNTED_ELEMENTS, self.max_elements) + 1):
            stops.count()
            subscriber.request(1)
            self._expect_elements_so_far(subscriber, number)
            pause(_SECONDS_TO_LAST_LINE)
            stops.end()

    @check("1.7", STRICT, needs="on_complete")
    def beyond_spec107_theEndShouldComeOnceWhileTwoThreadsAsk(self: Kit) -> None:
        """Another thread requests while the last element and on_complete come: on_complete comes
        only once.
        Look at the end of the source: only one thread may send the terminal signal. (By §2.7 a
        subscriber's requests should not overlap.)"""
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
        Look at the code that marks the publisher as idle: it must not overwrite the cancelled
        state, nor use an attribute that cancel clears."""
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
        """on_subscribe, on_next and another thread call request: all requested elements come.
        Look at how demand is added, and at requests before on_subscribe has returned. (By §2.7 a
        subscriber's requests should not overlap.)"""
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

    # -- helpers of the checks ---------------------------------------------------------------------

    def _elements(self: Kit) -> int:
        return min(_MOST_ELEMENTS, max(_FEWEST_ELEMENTS, self.max_elements))

    @contextmanager
    def _idle_window(self: Kit) -> Iterator[_IdleWindow]:
        """Measure how long the publisher takes to go idle, and start a second thread.

        The second thread makes calls while the publisher goes idle.
        """
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
        """Wait for ``count`` elements. Return within microseconds after the last one, if it comes
        soon.
        """
        if not poll_until(lambda: subscriber.received >= count):
            expected = f"{count} elements for as many requests"
            if place:
                expected += f" (the last request came before {place})"
            subscriber.wait_for_elements(count, "3.8", expected)

    def _expect_no_more(
        self: Kit, subscribers: list[ProbeSubscriber], rule: str, expected: str
    ) -> None:
        """Expect that no subscriber whose stream goes on has unread signals.

        (A subscriber whose stream has ended flags a second terminal signal itself.)
        """

        def noise() -> list[ProbeSubscriber]:
            return [each for each in subscribers if each.unread and each.terminal is None]

        self.environment.expect_quiet(
            noise, rule, expected, lambda: next((each.came() for each in noise()), "nothing")
        )


class _IdleWindow:
    """Lets the second thread make its call at a chosen moment while the publisher goes idle."""

    def __init__(self, second: SecondThread) -> None:
        self.second = second
        self._last: tuple[int, float] = (0, 0.0)  # the thread and the time of the last on_next
        self._measured: list[float] = []
        self._busy_seconds = 0.0
        self._round = 0

    def on_next(self, _subscriber: ProbeSubscriber) -> None:
        """``on_next`` calls this. The first call in a round starts the second thread's call."""
        self._last = threading.get_ident(), time.perf_counter()
        if self.second.is_armed:
            self.second.fire(self._round)
            stay_busy(self._busy_seconds)

    def measure(self) -> None:
        """Record the time since the last ``on_next``, if this thread called the ``on_next``.

        Call this method when ``request`` has returned: then the publisher is idle.
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
            after = _WINDOW * part**3  # no time was measured, but most publishers go idle soon
        self._round = self.second.arm(call, after)

    def wait_briefly(self) -> None:
        """Wait a short time for the second thread's call, which may itself wait for this thread."""
        self.second.wait_briefly(self._round)

    def join(self, expected: str) -> None:
        """Wait until the call of this round has returned.

        First wait for the ``on_next`` of this round. If this ``on_next`` came in the next round, it
        would start the call of the next round too early.
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
        """The line at which the sending thread was stopped."""
        return self._trace.place

    def on_next(self, _subscriber: ProbeSubscriber) -> None:
        """``on_next`` calls this. The first call in a round starts to count lines."""
        self._trace.begin()

    def count(self) -> None:
        """Begin a round that only counts lines, and does not stop the sending thread."""
        self._trace = LineTrace()

    def end(self) -> None:
        self._trace.end()
        self._lines = max(self._lines, self._trace.lines)

    def line_numbers(self, environment: Environment) -> Iterator[int]:
        """Yield a line number for each round. Leave lines out if there is no time for all lines."""
        for number, part in enumerate(sweep(environment, most=min(self._lines, _MOST_LINES)), 1):
            yield number if self._lines <= _FEW_LINES else 1 + int(part * self._lines)

    def arm(self, call: Callable[[], object], step: int) -> None:
        """Let the second thread make ``call`` while the sending thread stops at line ``step``."""

        def stop() -> None:
            self._second.fire(number)
            self._second.wait_briefly(number)

        number = self._second.arm(call, 0)
        self._trace = LineTrace(step, stop)

    def join(self, expected: str) -> None:
        """End the round.

        The sending thread may go idle before it reaches the chosen line. So do not wait long for
        the thread to be stopped.
        """
        poll_until(lambda: not self._second.is_armed, _SECONDS_TO_LAST_LINE)
        self._second.join(expected)
        self._trace.end()
