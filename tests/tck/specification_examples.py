"""The specification's own examples, as we write them in Python: what they do, not their text.

A range that is sent on the thread that asks; any iterable, sent on an executor; an endless one; a
subscriber on the publisher's thread; one on an executor. They take the liberties that the examples
in Java take: a cancel is seen after the batch under way, an invalid request after a cancel is
still answered, a subscriber that raises is logged and may live on.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from typing import Any

from rstreams_fast.api import UNBOUNDED
from rstreams_fast.errors import report_dropped

__all__ = ["AsyncIterablePublisher", "AsyncSubscriber", "RangePublisher", "SyncSubscriber"]

#: Elements that are sent before a cancel is looked at.
BATCH = 1024


class RangePublisher:
    """Numbers from ``start``, sent by the thread that calls ``request``."""

    def __init__(self, start: int, count: int) -> None:
        self._numbers = range(start, start + count)

    def subscribe(self, subscriber: Any, /) -> None:
        if subscriber is None:
            raise TypeError("§1.9: subscriber is None")
        try:
            subscriber.on_subscribe(RangeSubscription(subscriber, self._numbers))
        except Exception as raised:
            report_dropped(raised, "§2.13")


class RangeSubscription:
    """While there is demand, one thread sends; the others only add to the demand (§1.3, §3.3)."""

    def __init__(self, subscriber: Any, numbers: range) -> None:
        self._subscriber = subscriber
        self._numbers = iter(numbers)
        self._left = len(numbers)
        self._demand = 0
        self._lock = threading.Lock()
        self._invalid: Exception | None = None
        self._cancelled = False

    def request(self, n: int, /) -> None:
        if n < 1:
            self._invalid = ValueError("§3.9: request(n) needs n >= 1")
            n = 1
        with self._lock:
            before = self._demand
            self._demand = min(before + n, UNBOUNDED)
        if before:
            return
        try:
            self._send()
        except Exception as raised:
            self._cancelled = True
            report_dropped(raised, "§2.13")

    def cancel(self) -> None:
        self._cancelled = True

    def _send(self) -> None:
        """Leaves with demand where it is over, so no later request begins again."""
        while True:
            if self._invalid is not None:
                self._cancelled = True
                self._subscriber.on_error(self._invalid)
                return
            if self._cancelled:
                return
            if self._left:
                self._left -= 1
                self._subscriber.on_next(next(self._numbers))
            if not self._left and not self._cancelled:
                self._cancelled = True
                self._subscriber.on_complete()
                return
            with self._lock:
                self._demand -= 1
                if not self._demand:
                    return


class Mailbox:
    """Handles messages one at a time, in order, on an executor."""

    def __init__(self, executor: Executor, handle: Callable[..., None]) -> None:
        self._executor = executor
        self._handle = handle
        self._messages: deque[tuple[Any, ...]] = deque()
        self._running = False
        self._lock = threading.Lock()

    def put(self, *message: Any) -> None:
        with self._lock:
            self._messages.append(message)
            if self._running:
                return
            self._running = True
        self._executor.submit(self._run)

    def _run(self) -> None:
        self._handle(*self._messages.popleft())
        with self._lock:
            self._running = bool(self._messages)
        if self._running:
            self._executor.submit(self._run)


class AsyncIterablePublisher:
    """The elements of an iterable, sent on an executor in batches."""

    def __init__(self, elements: Iterable[Any], executor: Executor) -> None:
        self._elements = elements
        self._executor = executor

    def subscribe(self, subscriber: Any, /) -> None:
        if subscriber is None:
            raise TypeError("§1.9: subscriber is None")
        AsyncSubscription(subscriber, self._elements, self._executor)


class AsyncSubscription:
    """All that happens is a message; ``cancel`` is one, too, so it takes its turn."""

    def __init__(self, subscriber: Any, elements: Iterable[Any], executor: Executor) -> None:
        self._subscriber = subscriber
        self._elements = elements
        self._demand = 0
        self._cancelled = False
        self._mailbox = Mailbox(executor, self._handle)
        self._mailbox.put(self._begin)

    def request(self, n: int, /) -> None:
        self._mailbox.put(self._ask, n)

    def cancel(self) -> None:
        self._mailbox.put(self._end)

    def _handle(self, act: Callable[..., None], *arguments: Any) -> None:
        if self._cancelled:
            return
        try:
            act(*arguments)
        except Exception as raised:
            self._cancelled = True
            report_dropped(raised, "§2.13")

    def _begin(self) -> None:
        self._iterator = iter(self._elements)
        self._subscriber.on_subscribe(self)
        self._look_ahead()

    def _look_ahead(self) -> None:
        """Take the next element, so that the end is known without a request."""
        try:
            self._next = next(self._iterator)
        except StopIteration:
            self._end(self._subscriber.on_complete)
        except Exception as failed:
            self._end(self._subscriber.on_error, failed)

    def _ask(self, n: int) -> None:
        if n < 1:
            self._end(self._subscriber.on_error, ValueError("§3.9: request(n) needs n >= 1"))
            return
        self._demand = min(self._demand + n, UNBOUNDED)
        self._send()

    def _send(self) -> None:
        for _ in range(min(BATCH, self._demand)):
            self._demand -= 1
            self._subscriber.on_next(self._next)
            self._look_ahead()
            if self._cancelled:
                return
        if self._demand:
            self._mailbox.put(self._send)

    def _end(self, *signal: Any) -> None:
        self._cancelled = True
        if signal:
            signal[0](*signal[1:])


class SyncSubscriber:
    """Takes one element at a time, on the publisher's thread; ``take`` says whether to go on."""

    def __init__(self, take: Callable[[Any], bool]) -> None:
        self._take = take
        self._subscription: Any = None
        self._done = False

    def on_subscribe(self, subscription: Any, /) -> None:
        if subscription is None:
            raise TypeError("§2.13: subscription is None")
        if self._subscription is not None:
            subscription.cancel()
            return
        self._subscription = subscription
        subscription.request(1)

    def on_next(self, element: Any, /) -> None:
        if element is None:
            raise TypeError("§2.13: element is None")
        if self._done:
            return
        try:
            goes_on = self._take(element)
        except Exception as failed:
            report_dropped(failed, "the subscriber's work")
            goes_on = False
        if goes_on:
            self._subscription.request(1)
        else:
            self.stop()

    def on_error(self, error: BaseException, /) -> None:
        if error is None:
            raise TypeError("§2.13: error is None")

    def on_complete(self) -> None:
        pass

    def stop(self) -> None:
        self._done = True
        self._subscription.cancel()


class AsyncSubscriber:
    """The same, on an executor: each signal is a message."""

    def __init__(self, take: Callable[[Any], bool], executor: Executor) -> None:
        self._subscriber = SyncSubscriber(take)
        self._mailbox = Mailbox(executor, self._handle)
        self._over = False

    def on_subscribe(self, subscription: Any, /) -> None:
        self._put("on_subscribe", subscription)

    def on_next(self, element: Any, /) -> None:
        self._put("on_next", element)

    def on_error(self, error: BaseException, /) -> None:
        self._put("on_error", error)

    def on_complete(self) -> None:
        self._mailbox.put("on_complete")

    def stop(self) -> None:
        self._mailbox.put("stop")

    def _put(self, signal: str, value: Any) -> None:
        if value is None:
            raise TypeError(f"§2.13: {signal} of None")
        self._mailbox.put(signal, value)

    def _handle(self, signal: str, *values: Any) -> None:
        if not self._over:
            self._over = signal in ("on_error", "on_complete")
            getattr(self._subscriber, signal)(*values)
