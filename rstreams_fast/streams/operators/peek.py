"""Observers (``do_on_request`` and the like): functions that are called at signals.

An observer cannot change a signal. Its exceptions go to ``sys.unraisablehook``, and do not end the
stream.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from rstreams_fast._checks import describe_callable
from rstreams_fast.api import Publisher, Subscriber, Subscription
from rstreams_fast.core import Latch
from rstreams_fast.errors import report_unraisable
from rstreams_fast.runtime.executors import Trampoline
from rstreams_fast.runtime.turns import Turns
from rstreams_fast.streams.engine.boundary import Boundary
from rstreams_fast.streams.engine.chain import drop, stand_on
from rstreams_fast.streams.engine.custody import Custody
from rstreams_fast.streams.engine.metrics import BoundaryMetrics, metrics_above
from rstreams_fast.streams.engine.not_picklable import not_picklable
from rstreams_fast.streams.engine.signals import report_late
from rstreams_fast.streams.engine.trampoline import Below

__all__ = ["Named", "Peek"]


class Peek(Boundary):
    """Calls ``fn`` at each signal of one kind: ``do_on_subscribe``, ``do_on_request`` and so on."""

    one_to_one = True

    def __init__(self, signal: str, fn: Callable[..., object]) -> None:
        self.signal = signal
        self.fn = fn

    def attach(self, upstream: Publisher[Any], /) -> Publisher[Any]:
        return Below(upstream, _PeekSubscription, self)

    def describe(self) -> str:
        return f"do_{self.signal}({describe_callable(self.fn)}): holds no elements"

    def metrics(self) -> tuple[BoundaryMetrics, ...]:
        """Return the boundary's own metrics: none."""
        return ()

    def tell(self, signal: str, *args: Any) -> None:
        """Call the observer, if it observes ``signal``."""
        if signal == self.signal:
            try:
                self.fn(*args)
            except Exception as raised:
                report_unraisable(raised, f"do_{signal}", self.fn)


class Named(Peek):
    """The boundary of ``name``: adds a note to an error, and an entry to the metrics."""

    def __init__(self, name: str) -> None:
        if not isinstance(name, str) or not name:
            raise TypeError(f"name(name): name must be a str that is not empty, got {name!r}")
        super().__init__("on_error", self._add_note)
        self.name = name

    def describe(self) -> str:
        """Return a line with the name."""
        return f"name({self.name!r}): holds no elements"

    def metrics(self) -> tuple[BoundaryMetrics, ...]:
        """Return one entry, with the name and zeros."""
        return (BoundaryMetrics(self.describe(), 0, 0, None, 0, 0.0, 0.0),)

    def _add_note(self, error: BaseException) -> None:
        note = f"rstreams_fast: it passed {self.name!r}"
        # Several subscribers may receive one error object. Some errors accept no notes.
        if note not in getattr(error, "__notes__", ()):
            with suppress(Exception):
                error.add_note(note)


class _PeekSubscription:
    """Passes every signal on, and calls the observer.

    Upstream is internal, and keeps the rules, so there are no checks. Elements go directly to the
    subscriber below: ``on_next`` is the subscriber's own.
    """

    __slots__ = (
        "__weakref__",
        "_cancelled",
        "_peek",
        "_subscriber",
        "_subscription",
        "custody",
        "depth",
        "on_next",
        "trampoline",
        "turns",
    )

    __reduce__ = not_picklable

    custody: Custody | None
    depth: int
    trampoline: Trampoline | None
    turns: Turns | None

    def __init__(self, subscriber: Subscriber[Any], peek: Peek) -> None:
        stand_on(self, subscriber)
        self._subscriber: Subscriber[Any] | None = subscriber
        self.on_next: Callable[[Any], object] = subscriber.on_next
        self._peek = peek
        self._subscription: Subscription | None = None
        self._cancelled = Latch()  # a latch, closed by the first thread that cancels, or at the end

    def on_subscribe(self, subscription: Subscription, /) -> None:
        self._subscription = subscription
        self._peek.tell("on_subscribe", subscription)
        if self._subscriber is not None:
            try:
                self._subscriber.on_subscribe(self)
            except BaseException:
                self._drop_everything()
                self._finally()
                raise

    def dropped(self) -> None:
        drop(self._drop_everything())
        self._finally()

    # If an observer raises KeyboardInterrupt, the exception propagates to the caller. The terminal
    # signal is still sent, because the subscriber would wait for ever without it.

    def on_error(self, error: BaseException, /) -> None:
        try:
            self._peek.tell("on_error", error)
        finally:
            subscriber = self._drop_everything()
            try:
                if subscriber is not None:
                    subscriber.on_error(error)
                else:  # the subscriber has just cancelled: report the error
                    report_late(error)
            finally:
                self._finally()

    def on_complete(self) -> None:
        try:
            self._peek.tell("on_complete")
        finally:
            subscriber = self._drop_everything()
            try:
                if subscriber is not None:
                    subscriber.on_complete()
            finally:
                self._finally()

    def request(self, n: int, /) -> None:
        subscription = self._subscription
        if subscription is not None:
            try:
                self._peek.tell("on_request", n)
            except BaseException:
                self.cancel()
                raise
            subscription.request(n)

    def cancel(self) -> None:
        subscription = self._subscription
        if subscription is not None and self._cancelled.win():
            try:
                self._peek.tell("on_cancel")
            finally:
                self._drop_everything()
                subscription.cancel()
                self._peek.tell("finally")

    def metrics(self) -> tuple[BoundaryMetrics, ...]:
        return (*self._peek.metrics(), *metrics_above(self._subscription))

    def _finally(self) -> None:
        """Call the observer of ``do_finally``, unless ``cancel`` does that."""
        if self._peek.signal == "finally" and self._cancelled.win():
            self._peek.tell("finally")

    def _drop_everything(self) -> Subscriber[Any] | None:
        subscriber, self._subscriber = self._subscriber, None
        self.on_next = _ignore
        self._subscription = None
        return subscriber


def _ignore(_element: object) -> None:
    pass
