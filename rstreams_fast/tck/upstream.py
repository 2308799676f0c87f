"""The kit's publishers: a check controls an ``Upstream``; a ``CorrectSource`` works by itself."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from rstreams_fast.errors import InvalidRequestError, InvalidRequestTypeError, report_dropped
from rstreams_fast.tck.environment import Environment
from rstreams_fast.tck.history import show_call
from rstreams_fast.tck.outcome import RAISED

__all__ = ["CorrectSource", "TestError", "Upstream"]

#: The largest number of calls in a message. The history has all calls.
_SHOWN = 8
#: A check is abandoned after this many calls on a subscription. No check needs so many.
_MOST_CALLS = 10_000


class TestError(Exception):
    """The error that the kit's publishers signal."""

    __test__ = False


class Upstream:
    """The kit's publisher above a subscriber under test. The check tells it which signals to send.

    The object is also the subscription: it records the calls of ``request`` and ``cancel``, and
    flags calls that break a rule. It sends an element even if no element was requested.
    """

    def __init__(
        self, environment: Environment, subscriber: Any, *, waiting_calls: int = 0
    ) -> None:
        self.environment = environment
        self.subscriber = subscriber
        self.requests: list[Any] = []
        self.cancels = 0
        self.answer: Callable[[], object] | None = None  # called by request before it returns
        self._name = environment.name("subscription")
        self._waiting_calls = waiting_calls  # this many calls wait briefly for an overlapping call
        # The thread in which a terminal signal is being sent, and the name of the signal.
        self._terminal: tuple[int, str] | None = None
        self._running: list[tuple[int, str]] = []
        self._read = 0
        self._calls = 0

    # -- the methods of a subscription -------------------------------------------------------------

    def request(self, n: Any, /) -> None:
        call = show_call("request", n)
        self._record(call, functools.partial(self.requests.append, n))
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            self.environment.flag("3.9", "request(n) with an int n >= 1", call)
        if self.answer is not None:
            self.answer()

    def cancel(self) -> None:
        def count() -> None:
            self.cancels += 1

        self._record("cancel()", count)

    def _record(self, call: str, note: Callable[[], None]) -> None:
        me = (threading.get_ident(), call)
        environment = self.environment
        if environment.abandoned:
            environment.end_calling_thread()
        environment.history.add(f"{self._name}.{call}")
        with environment.changed:
            self._judge(*me)
            self._calls += 1
            if self._calls == _MOST_CALLS:
                came = f"{self._calls} calls on the subscription, and they go on"
                environment.abandon(environment.rule, "an end of the calls", came)
            self._running.append(me)
            waits, self._waiting_calls = self._waiting_calls > 0, self._waiting_calls - 1
            environment.changed.notify_all()
            if waits:
                environment.changed.wait_for(lambda: len(self._running) > 1, environment.silence)
            note()
            self._running.remove(me)
            environment.changed.notify_all()

    def _judge(self, me: int, call: str) -> None:
        flag = self.environment.flag
        for thread, other in self._running:
            if thread != me:
                came = f"{call} while another thread is inside {other}"
                flag("2.7", "calls on a subscription one after the other", came)
        terminal = self._terminal  # read the attribute only once: another thread may change it
        if terminal is not None and terminal[0] == me:
            name = terminal[1]
            flag("2.3", f"{name} calls nothing on the subscription", f"{call} from within {name}")

    # -- methods that the check calls --------------------------------------------------------------

    def send_subscription(self) -> None:
        self.send("on_subscribe", self)

    def send_next(self, element: Any) -> None:
        self.send("on_next", element)

    def send(self, name: str, *arguments: Any) -> None:
        """Send the signal ``name``. If the subscriber raises an exception, §2.13 is broken.

        If the subscriber calls ``request`` or ``cancel`` in a terminal signal, §2.3 is broken.
        """
        shown = tuple(each for each in arguments if each is not self)
        self.environment.history.record_call("subscriber", name, *shown)
        try:
            self.environment.call(self._signal, name, *arguments)
        except RAISED as raised:
            expected = f"{show_call(name, *shown)} returns normally"
            self.environment.flag("2.13", expected, f"it raised {raised!r}")

    def _signal(self, name: str, *arguments: Any) -> None:
        if name in ("on_complete", "on_error"):
            self._terminal = (threading.get_ident(), name)
        try:
            getattr(self.subscriber, name)(*arguments)
        finally:
            self._terminal = None

    @property
    def demand(self) -> int:
        """The number of elements that were requested so far."""
        return sum(n for n in self.requests if isinstance(n, int))

    def came(self) -> str:
        calls = [show_call("request", n) for n in self.requests[self._read :]]
        return ", ".join([*calls, *["cancel()"] * self.cancels][:_SHOWN]) or (
            "no call on the subscription"
        )

    def expect_request(self, rule: str = "2.1", expected: str = "a request(n)") -> int:
        """Wait for the next call of ``request``, and return its ``n``."""
        self.environment.wait(lambda: self.requests[self._read :], rule, expected, self.came)
        n: int = self.requests[self._read]
        self._read += 1
        return n

    def expect_cancel(self, rule: str, expected: str) -> None:
        self.environment.wait(lambda: self.cancels, rule, expected, self.came)


class CorrectSource:
    """A correct publisher of ``create(0)``, ``create(1)`` ..., for one subscriber.

    After ``count`` elements it completes, or fails with ``failure``. The object is also the
    subscription. Only one thread at a time sends. Meanwhile, a request only adds demand (§1.3).
    """

    def __init__(
        self, create: Callable[[int], Any], count: int, failure: Exception | None = None
    ) -> None:
        self._create = create
        self._count = count
        self._end = failure
        self._next = 0
        self._demand = 0
        self._invalid: Exception | None = None
        self._draining = True  # so that no request sends before on_subscribe has returned
        self._lock = threading.Lock()

    def subscribe(self, subscriber: Any, /) -> None:
        self._subscriber = subscriber
        self._signal(subscriber.on_subscribe, self)
        self._drain()

    def request(self, n: int, /) -> None:
        with self._lock:
            if isinstance(n, bool) or not isinstance(n, int):
                self._invalid = self._invalid or InvalidRequestTypeError(n)
            elif n < 1:
                self._invalid = self._invalid or InvalidRequestError(n)
            else:
                self._demand += n
            if self._draining:
                return
            self._draining = True
        self._drain()

    def cancel(self) -> None:
        self._subscriber = None

    def _drain(self) -> None:
        while (signal := self._next_signal()) is not None:
            self._signal(*signal)

    def _next_signal(self) -> tuple[Any, ...] | None:
        with self._lock:
            subscriber = self._subscriber
            at_end = self._next >= self._count
            if subscriber is None or not (self._invalid or at_end or self._demand):
                self._draining = False
                return None
            if self._invalid is None and not at_end:
                self._demand -= 1
                self._next += 1
                return subscriber.on_next, self._create(self._next - 1)
            self._subscriber = None
            error = self._invalid or self._end
            return (subscriber.on_complete,) if error is None else (subscriber.on_error, error)

    def _signal(self, call: Callable[..., object], *arguments: Any) -> None:
        try:
            call(*arguments)
        except RAISED as raised:
            self._subscriber = None
            report_dropped(raised, "§2.13")
