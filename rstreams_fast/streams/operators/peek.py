"""Observers: the functions that ``do_on_request`` and similar operators call at each signal.

An observer cannot change a signal. Its exceptions go to ``sys.unraisablehook``, and do not end the
stream.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rstreams_fast._checks import add_note, describe_callable
from rstreams_fast.api import Publisher, Subscriber, Subscription
from rstreams_fast.core import Latch
from rstreams_fast.errors import report_unraisable
from rstreams_fast.streams.engine.boundary import Boundary
from rstreams_fast.streams.engine.metrics import BoundaryMetrics
from rstreams_fast.streams.engine.not_picklable import is_own
from rstreams_fast.streams.engine.relay import Relay
from rstreams_fast.streams.engine.trampoline import OperatorPublisher

__all__ = ["Named", "Peek"]


class Peek(Boundary):
    """Calls ``fn`` at each signal of one kind, such as ``on_subscribe`` or ``request``."""

    one_to_one = True

    def __init__(self, signal: str, fn: Callable[..., object]) -> None:
        self.signal = signal
        self.fn = fn

    def attach(self, upstream: Publisher[Any], /) -> Publisher[Any]:
        return OperatorPublisher(upstream, _PeekSubscription, self)

    def describe(self) -> str:
        return f"do_{self.signal}({describe_callable(self.fn)}): holds no elements"

    def metrics(self) -> tuple[BoundaryMetrics, ...]:
        return ()

    def call_observer(self, signal: str, *args: Any) -> None:
        """Call the user's function with ``args``, if it observes signals of the kind ``signal``."""
        if signal == self.signal:
            try:
                self.fn(*args)
            except Exception as raised:
                report_unraisable(raised, f"do_{signal}", self.fn)


class Named(Peek):
    """``Stream.name``: adds the name to the metrics, and a note with the name to each error."""

    def __init__(self, name: str) -> None:
        if not isinstance(name, str) or not name:
            raise TypeError(f"name(name): name must be a str that is not empty, got {name!r}")
        super().__init__("on_error", self._add_note)
        self.name = name

    def describe(self) -> str:
        return f"name({self.name!r}): holds no elements"

    def metrics(self) -> tuple[BoundaryMetrics, ...]:
        return (BoundaryMetrics(self.describe(), 0, 0, None, 0, 0.0, 0.0),)

    def _add_note(self, error: BaseException) -> None:
        add_note(error, f"rstreams_fast: it passed {self.name!r}")


class _PeekSubscription(Relay):
    """Calls the observer of one kind of signal, and passes every signal on.

    Elements are not observed. So the attribute ``on_next`` is the ``on_next`` of the subscriber
    below, and an element costs no extra call.
    """

    __slots__ = ("_cancelled", "_peek", "on_next")

    def __init__(self, subscriber: Subscriber[Any], peek: Peek) -> None:
        super().__init__(subscriber)
        self.on_next: Callable[[Any], object] = subscriber.on_next
        self._peek = peek
        # A flag, set by the first cancel, because only the first cancel calls the observer. With
        # ``do_finally`` the end of the stream also sets the flag: it calls the same observer.
        self._cancelled = Latch()

    def on_subscribe(self, subscription: Subscription, /) -> None:
        self._peek.call_observer("on_subscribe", subscription)
        super().on_subscribe(subscription)

    # ``finally``: if an observer raises KeyboardInterrupt, the exception propagates to upstream's
    # code, but the subscriber still gets the terminal signal. Otherwise it would wait for ever.

    def on_error(self, error: BaseException, /) -> None:
        try:
            self._peek.call_observer("on_error", error)
        finally:
            super().on_error(error)

    def on_complete(self) -> None:
        try:
            self._peek.call_observer("on_complete")
        finally:
            super().on_complete()

    def request(self, n: int, /) -> None:
        subscription = self._subscription
        if subscription is not None:
            try:
                self._peek.call_observer("on_request", n)
            except BaseException:
                self.cancel()
                raise
            subscription.request(n)

    def cancel(self) -> None:
        subscription = self._subscription
        if subscription is not None and self._cancelled.win():
            try:
                self._peek.call_observer("on_cancel")
            finally:
                self._release()
                try:
                    subscription.cancel()
                finally:
                    self._peek.call_observer("finally")

    def metrics(self) -> tuple[BoundaryMetrics, ...]:
        return (*self._peek.metrics(), *super().metrics())

    def _over(self) -> None:
        """At the end of the stream, call the observer of ``do_finally``, once.

        Do not call the observer if ``cancel`` has called it already.
        """
        if self._peek.signal == "finally" and self._cancelled.win():
            self._peek.call_observer("finally")

    def _release(self) -> Subscriber[Any] | None:
        # ``signals.interrupts`` asks whether ``on_next`` belongs to this package. The answer must
        # stay the same: the present ``on_next`` may have cancelled, and may raise now.
        self.on_next = _ignore if is_own(self.on_next) else id
        return super()._release()


def _ignore(_element: object) -> None:
    pass
