"""A recording subscriber and a manual publisher: the two ends that the rule tests hold in hand."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

from rstreams_fast.runtime.timers import ManualTimer
from tests.helpers import DEADLINE, Counted


class Recorder:
    """A subscriber that keeps every signal, and checks §1.3, §1.7 and §1.9 as it goes."""

    def __init__(
        self,
        *,
        request: Any = ...,
        on_next: Callable[[Recorder, Any], object] | None = None,
        on_subscribe: Callable[[Recorder], object] | None = None,
        raises: tuple[str, BaseException] | None = None,
    ) -> None:
        self.signals: list[tuple[Any, ...]] = []
        self.terminal: tuple[Any, ...] | None = None
        self.violations: list[str] = []
        self.subscription: Any = None
        self.depth = 0
        self.max_depth = 0
        self._request = request
        self._on_next = on_next
        self._on_subscribe = on_subscribe
        self._raises = raises  # at which signal, and what
        self._owner: int | None = None
        self._changed = threading.Condition()

    def _signal(self, *signal: Any) -> None:
        me = threading.get_ident()
        if self._owner not in (None, me):
            self.violations.append(f"§1.3: {signal} overlaps a signal of another thread")
        if self.terminal is not None:
            self.violations.append(f"§1.7: {signal} after {self.terminal}")
        if signal[0] != "on_subscribe" and self.subscription is None:
            self.violations.append(f"§1.9: {signal} before on_subscribe")
        with self._changed:
            self.signals.append(signal)
            if signal[0] in ("on_error", "on_complete") and self.terminal is None:
                self.terminal = signal
            self._changed.notify_all()
        if self._raises is not None and self._raises[0] == signal[0]:
            raise self._raises[1]

    def on_subscribe(self, subscription: Any, /) -> None:
        if self.subscription is not None:
            self.violations.append("§2.12: a second on_subscribe")
        self.subscription = subscription  # first: threads that wait for it are woken by the signal
        self._signal("on_subscribe")
        if self._on_subscribe is not None:
            self._on_subscribe(self)
        if self._request is not ...:
            subscription.request(self._request)

    def on_next(self, element: Any, /) -> None:
        outermost = self._owner is None
        if outermost:
            self._owner = threading.get_ident()
        self.depth += 1
        self.max_depth = max(self.max_depth, self.depth)
        try:
            self._signal("on_next", element)
            if self._on_next is not None:
                self._on_next(self, element)
        finally:
            self.depth -= 1
            if outermost:
                self._owner = None

    def on_error(self, error: BaseException, /) -> None:
        self._signal("on_error", error)

    def on_complete(self) -> None:
        self._signal("on_complete")

    @property
    def elements(self) -> list[Any]:
        return [signal[1] for signal in self.signals if signal[0] == "on_next"]

    @property
    def error(self) -> BaseException | None:
        terminal = self.terminal
        return terminal[1] if terminal is not None and terminal[0] == "on_error" else None

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for a signal that makes ``condition`` true."""
        end = time.monotonic() + DEADLINE
        with self._changed:
            while not condition():
                left = end - time.monotonic()
                assert left > 0, f"{what} did not happen within {DEADLINE} s; seen: {self.signals}"
                self._changed.wait(left)

    def wait_elements(self, count: int) -> None:
        # Signals first: they need not be looked through.
        self.wait(
            lambda: len(self.signals) >= count and len(self.elements) >= count, f"element {count}"
        )

    def wait_terminal(self) -> tuple[Any, ...]:
        self.wait(lambda: self.terminal is not None, "a terminal signal")
        terminal = self.terminal
        assert terminal is not None
        return terminal

    def wait_subscribed(self) -> None:
        self.wait(lambda: self.subscription is not None, "on_subscribe")

    def check(self) -> None:
        assert self.violations == []


class Plain:
    """A subscriber that keeps nothing but its subscription, and its error."""

    def __init__(self, on_next: Callable[[Any], object] = lambda _x: None) -> None:
        self.subscription: Any = None
        self.error: BaseException | None = None
        self._on_next = on_next

    def on_subscribe(self, subscription: Any, /) -> None:
        self.subscription = subscription

    def on_next(self, element: Any, /) -> None:
        self._on_next(element)

    def on_error(self, error: BaseException, /) -> None:
        self.error = error

    def on_complete(self) -> None:
        pass


class Forgetful(Recorder):
    """Counts its elements and keeps none; what ``on_next`` breaks it does not see."""

    taken = 0

    def on_next(self, element: Any, /) -> None:
        self.taken += 1


class ManualPublisher:
    """A publisher that signals only what the test tells it to, and records what it is asked."""

    def __init__(self, on_request: Callable[[ManualPublisher], object] = lambda _me: None) -> None:
        self._on_request = on_request
        self.subscriber: Any = None
        self.requests: list[int] = []
        self.cancels = 0
        self.subscribes = 0
        self._changed = threading.Condition()

    def subscribe(self, subscriber: Any, /) -> None:
        self.subscribes += 1
        self.subscriber = subscriber
        subscriber.on_subscribe(self)

    def request(self, n: int, /) -> None:
        with self._changed:
            self.requests.append(n)
            self._changed.notify_all()
        self._on_request(self)

    def cancel(self) -> None:
        with self._changed:
            self.cancels += 1
            self._changed.notify_all()

    @property
    def requested(self) -> int:
        return sum(self.requests)

    def wait_requested(self, n: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.requested >= n, DEADLINE), self.requests

    def wait_cancelled(self) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.cancels > 0, DEADLINE), "no cancel came"


class Synchronous(ManualPublisher):
    """Answers each request at once, on the thread that asks, with what ``make`` makes: ``total``
    in all.
    """

    def __init__(self, total: int = 10**9, make: Callable[[int], Any] = lambda n: n) -> None:
        super().__init__()
        self.total = total
        self.sent = 0
        self.threads: set[int] = set()
        self._make = make
        self._demand = 0
        self._busy = False

    def request(self, n: int, /) -> None:
        super().request(n)
        self.threads.add(threading.get_ident())
        self._demand += n
        if self._busy:
            return
        self._busy = True
        while self._demand and not self.cancels and self.sent < self.total:
            self._demand -= 1
            self.sent += 1
            self.subscriber.on_next(self._make(self.sent - 1))
        self._busy = False
        if self.sent == self.total and not self.cancels:
            self.subscriber.on_complete()


def raising(error: BaseException) -> Callable[[object], NoReturn]:
    """What raises ``error`` when it is called."""

    def call(_argument: object) -> NoReturn:
        raise error

    return call


class Clock(ManualTimer):
    """A clock in hand: what is due has been delivered when ``advance`` returns."""


class HandTimer(ManualTimer):
    """One below which streams do their work on shared threads, as below the timer of all."""

    runs_slow_work = False


class CountingTimer(HandTimer):
    """A clock in hand that counts the alarms that were set."""

    def __init__(self) -> None:
        super().__init__()
        self.alarms = Counted()

    def call_later(self, *args: Any) -> Any:
        try:
            return super().call_later(*args)
        finally:
            self.alarms.add()


class BrokenTimer(HandTimer):
    """One that refuses every alarm."""

    def call_later(self, *_args: Any) -> Any:
        raise OSError("no timer today")


def subscribed(publisher: Any, request: Any = ..., **options: Any) -> Recorder:
    """Return a recorder that has subscribed, and asked for so much."""
    recorder = Recorder(request=request, **options)
    publisher.subscribe(recorder)
    return recorder


def send(publisher: ManualPublisher, *elements: Any) -> None:
    """Signal ``elements``, one after the other."""
    for element in elements:
        publisher.subscriber.on_next(element)
