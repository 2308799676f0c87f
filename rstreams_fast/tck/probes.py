"""The kit's own subscriber, subscription and publishers.

They judge while they record: what breaks a rule in any check, they flag at once.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from rstreams_fast.errors import (
    InvalidRequestError,
    InvalidRequestTypeError,
    NoneSignalError,
    report_dropped,
)
from rstreams_fast.tck.environment import Environment
from rstreams_fast.tck.history import show
from rstreams_fast.tck.outcome import RuleBroken

__all__ = [
    "HelperPublisher",
    "ProbeFailed",
    "ProbePublisher",
    "ProbeSubscriber",
    "ProbeSubscription",
    "same",
]

Signal = tuple[Any, ...]


class ProbeFailed(Exception):
    """What the kit's subscribers raise, to see where it goes (§2.13)."""


#: A message shows so many signals; the history has them all.
_SHOWN = 8
#: What a subscriber and a subscription can do.
SUBSCRIBER = ("on_subscribe", "on_next", "on_error", "on_complete")
SUBSCRIPTION = ("request", "cancel")


def same(one: Any, other: Any) -> bool:
    """Whether two elements are the same: the same object, or equal.

    Where ``==`` raises, gives what is neither true nor false (arrays do), or does not even say that
    an element equals itself (NaN), they are compared by their ``repr``. Elements without one count
    as the same: nothing can be seen of them.
    """
    if one is other:
        return True
    try:
        if one == other:
            return True
        if one == one:  # noqa: PLR0124
            return False
    except Exception as raised:
        del raised
    try:
        return type(one) is type(other) and repr(one) == repr(other)
    except Exception:
        return type(one) is type(other)


def has_methods(thing: object, *names: str) -> bool:
    """Whether it has these methods, be it through ``__getattr__``, which protocols do not ask."""
    return all(callable(getattr(thing, name, None)) for name in names)


def _text(signal: Signal) -> str:
    return f"{signal[0]}({', '.join(map(show, signal[1:]))})"


class ProbeSubscriber:
    """Records every signal and asks only when told to."""

    def __init__(
        self,
        environment: Environment,
        *,
        on_subscribe: Callable[[Any], object] | None = None,
        on_next: Callable[[Any, Any], object] | None = None,
        on_terminal: Callable[[Any], object] | None = None,
    ) -> None:
        self._environment = environment
        self.name = environment.name("subscriber")
        self._subscription_name = self.name.replace("subscriber", "subscription")
        self.signals: list[Signal] = []
        self.subscription: Any = None
        self.requested = 0
        self.received = 0
        self.deepest = 0
        self.terminal: Signal | None = None
        self._depth = 0
        self._read = 0
        self._inside: tuple[int, Signal] | None = None
        self._react_subscribe = on_subscribe
        self._react_next = on_next
        self._react_terminal = on_terminal
        environment.keep_track(self)

    # -- Subscriber --------------------------------------------------------------------------------

    def on_subscribe(self, subscription: Any, /) -> None:
        outermost = self._enter(("on_subscribe",))
        try:
            if not has_methods(subscription, *SUBSCRIPTION):
                self._flag(
                    "1.9", "on_subscribe with a subscription (request and cancel)", subscription
                )
            if self.subscription is not None:
                self._flag("2.12", "one on_subscribe", "a second on_subscribe")
                return
            self.subscription = subscription
            with self._environment.changed:
                self._environment.changed.notify_all()
            if self._react_subscribe is not None:
                self._react_subscribe(self)
        finally:
            self._leave(outermost)

    def on_next(self, element: Any, /) -> None:
        outermost = self._enter(("on_next", element))
        try:
            if self._react_next is not None:
                self._react_next(self, element)
        finally:
            self._leave(outermost)

    def on_error(self, error: BaseException, /) -> None:
        outermost = self._enter(("on_error", error))
        try:
            if not isinstance(error, BaseException):
                self._flag("1.4", "on_error with an exception", error)
            if self._react_terminal is not None:
                self._react_terminal(self)
        finally:
            self._leave(outermost)

    def on_complete(self) -> None:
        outermost = self._enter(("on_complete",))
        try:
            if self._react_terminal is not None:
                self._react_terminal(self)
        finally:
            self._leave(outermost)

    def _flag(self, rule: str, expected: str, came: object) -> None:
        self._environment.flag(rule, expected, came if isinstance(came, str) else show(came))

    def _enter(self, signal: Signal) -> bool:
        """Record a signal, judge it; True if no other signal of this subscriber is going on."""
        me = threading.get_ident()
        environment = self._environment
        with environment.changed:
            environment.history.add(f"{self.name}.{_text(signal)}")
            if self._inside is not None and self._inside[0] != me:
                self._flag(
                    "1.3",
                    "one signal at a time",
                    f"{_text(signal)} while another thread is inside {_text(self._inside[1])}",
                )
            if self.subscription is None and signal[0] != "on_subscribe":
                self._flag("1.9", "on_subscribe before any other signal", _text(signal))
            if self.terminal is not None:
                self._flag(
                    "1.7", f"nothing after {_text(self.terminal)}", f"{_text(signal)} after it"
                )
            if signal[0] == "on_next":
                self.received += 1
                if self.received > self.requested:
                    self._flag(
                        "1.1",
                        f"at most {self.requested} elements, as requested",
                        f"{_text(signal)} is element {self.received}",
                    )
                if signal[1] is None:
                    self._flag("2.13", "no element is None", f"element {self.received} is None")
            elif signal[0] != "on_subscribe":
                self.terminal = self.terminal or signal
            self.signals.append(signal)
            outermost = self._inside is None
            if outermost:
                self._inside = (me, signal)
            if signal[0] == "on_next":
                self._depth += 1
                self.deepest = max(self.deepest, self._depth)
            environment.changed.notify_all()
        return outermost

    def _leave(self, outermost: bool) -> None:
        with self._environment.changed:
            self._depth = max(0, self._depth - 1)
            if outermost:
                self._inside = None
                self._depth = 0
            self._environment.changed.notify_all()

    # -- the check's side --------------------------------------------------------------------------

    def request(self, n: Any) -> None:
        """Call ``subscription.request(n)``; that it raises breaks §3.16."""
        with self._environment.changed:
            if type(n) is int and n > 0:
                self.requested += n
        self._use_subscription("3.16", "request", n)

    def cancel(self) -> None:
        """Call ``subscription.cancel()``; that it raises breaks §3.15."""
        self._use_subscription("3.15", "cancel")

    def _use_subscription(self, rule: str, method: str, *arguments: Any) -> None:
        environment = self._environment
        environment.history.do(self._subscription_name, method, *arguments)
        try:
            environment.call(getattr(self.subscription, method), *arguments)
        except Exception as raised:
            rule = "2.13" if isinstance(raised, ProbeFailed) else rule
            call = f"{method}({', '.join(map(show, arguments))})"
            environment.flag(rule, f"{call} returns normally", f"it raised {raised!r}")

    def leave(self) -> None:
        """Cancel, if there is anything to cancel, without judging: the check is over."""
        if self.subscription is not None and self.terminal is None:
            try:
                self._environment.call(self.subscription.cancel)
            except Exception as raised:
                self._environment.history.add(f"the kit's last cancel raised {raised!r}")

    @property
    def elements(self) -> list[Any]:
        return [signal[1] for signal in self.signals if signal[0] == "on_next"]

    @property
    def unread(self) -> list[Signal]:
        """The signals after ``on_subscribe`` that no expectation has taken yet."""
        return [signal for signal in self.signals[self._read :] if signal[0] != "on_subscribe"]

    def came(self) -> str:
        unread = [_text(signal) for signal in self.unread]
        return (
            ", ".join(unread[:_SHOWN]) + (" ..." if len(unread) > _SHOWN else "")
            if unread
            else "nothing"
        )

    def _next(self, rule: str, expected: str) -> Signal:
        self._environment.wait(lambda: self.unread, rule, expected, self.came)
        while True:
            signal = self.signals[self._read]
            self._read += 1
            if signal[0] != "on_subscribe":
                return signal

    def expect_subscription(self, rule: str = "1.9") -> None:
        self._environment.wait(
            lambda: self.subscription is not None,
            rule,
            "on_subscribe",
            self.came,
        )

    def expect_element(self, rule: str, expected: str = "on_next") -> Any:
        signal = self._next(rule, expected)
        if signal[0] != "on_next":
            raise RuleBroken(rule, expected, _text(signal))
        return signal[1]

    def expect_elements(self, count: int, rule: str, expected: str = "") -> list[Any]:
        what = expected or f"{count} elements"
        return [self.expect_element(rule, f"{what} (element {i + 1})") for i in range(count)]

    def expect_completion(self, rule: str = "1.5", expected: str = "on_complete") -> None:
        signal = self._next(rule, expected)
        if signal[0] != "on_complete":
            raise RuleBroken(rule, expected, _text(signal))

    def expect_error(
        self,
        rule: str = "1.4",
        expected: str = "on_error",
        types: type[BaseException] | tuple[type[BaseException], ...] = BaseException,
    ) -> BaseException:
        signal = self._next(rule, expected)
        if signal[0] != "on_error" or not isinstance(signal[1], types):
            raise RuleBroken(rule, expected, _text(signal))
        error: BaseException = signal[1]
        return error

    def expect_silence(self, rule: str, expected: str) -> None:
        """Expect that nothing comes for one silence window."""
        self._environment.expect_quiet(lambda: self.unread, rule, expected, self.came)

    def expect_end(self) -> None:
        """Expect ``on_complete``; ask once more before, as some publishers need it."""
        if not self.unread:
            self.request(1)
        self.expect_completion("1.5", "on_complete after the last element")

    def wait_until(self, condition: Callable[[Any], object], rule: str, expected: str) -> None:
        """Wait for a state of this subscriber, whatever has been read.

        The deadline is for the next signal, not for all: a long stream may take its time.
        """
        while not condition(self):
            before = len(self.signals)
            self._environment.wait(
                functools.partial(self._is_there, condition, before), rule, expected, self._state
            )
        self._environment.verify()

    def _is_there(self, condition: Callable[[Any], object], before: int) -> object:
        return condition(self) or len(self.signals) > before

    def _state(self) -> str:
        return f"{self.received} elements, {_text(self.terminal) if self.terminal else 'no end'}"


class ProbeSubscription:
    """What a subscriber under test is given: records and judges its calls."""

    def __init__(self, environment: Environment, *, linger: int = 0) -> None:
        self._environment = environment
        self.name = environment.name("subscription")
        self.requests: list[Any] = []
        self.cancels = 0
        self.within: tuple[int, str] | None = None  # the thread and name of a terminal signal
        self.answer: Callable[[], object] | None = None  # what request does before it returns
        self._linger = linger  # so many calls wait for another one to overlap them
        self._inside: list[tuple[int, str]] = []
        self._read = 0

    @property
    def demand(self) -> int:
        """All that was asked for."""
        return sum(n for n in self.requests if isinstance(n, int))

    def request(self, n: Any, /) -> None:
        self._enter(f"request({show(n)})")
        environment = self._environment
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            environment.flag("3.9", "request(n) with an int n >= 1", f"request({show(n)})")
        with environment.changed:
            self.requests.append(n)
            environment.changed.notify_all()
        self._leave()
        if self.answer is not None:
            self.answer()

    def cancel(self) -> None:
        self._enter("cancel()")
        with self._environment.changed:
            self.cancels += 1
            self._environment.changed.notify_all()
        self._leave()

    def _enter(self, call: str) -> None:
        me = threading.get_ident()
        environment = self._environment
        environment.history.add(f"{self.name}.{call}")
        with environment.changed:
            for ident, other in self._inside:
                if ident != me:
                    environment.flag(
                        "2.7",
                        "calls on a subscription one after the other",
                        f"{call} while another thread is inside {other}",
                    )
            if self.within is not None and self.within[0] == me:
                environment.flag(
                    "2.3",
                    f"{self.within[1]} calls nothing on the subscription",
                    f"{call} from within {self.within[1]}",
                )
            self._inside.append((me, call))
            lingers, self._linger = self._linger > 0, self._linger - 1
            environment.changed.notify_all()
            if lingers:
                environment.changed.wait_for(lambda: len(self._inside) > 1, environment.silence)

    def _leave(self) -> None:
        me = threading.get_ident()
        with self._environment.changed:
            for index in reversed(range(len(self._inside))):
                if self._inside[index][0] == me:
                    del self._inside[index]
                    break

    @property
    def unread(self) -> list[Any]:
        return self.requests[self._read :]

    def came(self) -> str:
        calls = [f"request({show(n)})" for n in self.unread] + ["cancel()"] * self.cancels
        return ", ".join(calls[:_SHOWN]) if calls else "no call on the subscription"

    def expect_request(self, rule: str = "2.1", expected: str = "a request(n)") -> int:
        self._environment.wait(lambda: self.unread, rule, expected, self.came)
        n: int = self.requests[self._read]
        self._read += 1
        return n

    def expect_cancel(self, rule: str, expected: str = "cancel()") -> None:
        self._environment.wait(lambda: self.cancels, rule, expected, self.came)


class ProbePublisher:
    """Signals to a subscriber under test what the check tells it to; keeps no demand."""

    def __init__(
        self, environment: Environment, subscriber: Any, subscription: ProbeSubscription
    ) -> None:
        self.environment = environment
        self.subscriber = subscriber
        self.subscription = subscription

    def send_subscription(self) -> None:
        self._signal("on_subscribe", self.subscription)

    def send_next(self, element: Any) -> None:
        self._signal("on_next", element)

    def send_complete(self) -> None:
        self._signal("on_complete")

    def send_error(self, error: BaseException) -> None:
        self._signal("on_error", error)

    def _signal(self, name: str, *arguments: Any) -> None:
        """Signal; that this raises breaks §2.13, and what a terminal signal calls breaks §2.3."""
        environment, subscription = self.environment, self.subscription

        def call() -> None:
            if name in ("on_complete", "on_error"):
                subscription.within = (threading.get_ident(), name)
            try:
                getattr(self.subscriber, name)(*arguments)
            finally:
                subscription.within = None

        shown = tuple(each for each in arguments if each is not subscription)
        environment.history.do("subscriber", name, *shown)
        try:
            environment.call(call)
        except Exception as raised:
            text = f"{name}({', '.join(map(show, shown))})"
            environment.flag("2.13", f"{text} returns normally", f"it raised {raised!r}")


class HelperPublisher:
    """A correct publisher of ``create(0)``, ``create(1)`` ...; one lock, one drain.

    After ``count`` elements it completes, or fails with ``failure``.
    """

    def __init__(
        self, create: Callable[[int], Any], count: int, failure: Exception | None = None
    ) -> None:
        self._create = create
        self._count = count
        self._failure = failure

    def subscribe(self, subscriber: Any, /) -> None:
        if subscriber is None:
            raise NoneSignalError("§1.9: subscriber is None")
        if not has_methods(subscriber, *SUBSCRIBER):
            raise TypeError(f"§1.9: {type(subscriber).__name__} lacks a subscriber's methods")
        subscription = _HelperSubscription(subscriber, self._create, self._count, self._failure)
        subscription.start()


class _HelperSubscription:
    """One thread at a time drains; a request that finds it at work leaves its demand (§1.3)."""

    def __init__(
        self,
        subscriber: Any,
        create: Callable[[int], Any],
        count: int,
        failure: Exception | None,
    ) -> None:
        self._subscriber = subscriber
        self._create = create
        self._count = count
        self._next = 0
        self._demand = 0
        self._failure = failure
        self._invalid: Exception | None = None
        self._draining = True  # until on_subscribe has returned
        self._lock = threading.Lock()

    def start(self) -> None:
        self._signal(self._subscriber.on_subscribe, self)
        self._drain()

    def request(self, n: int, /) -> None:
        with self._lock:
            if self._subscriber is None:
                return
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
            error = self._invalid or self._failure
            return (subscriber.on_complete,) if error is None else (subscriber.on_error, error)

    def _signal(self, call: Callable[..., object], *arguments: Any) -> None:
        try:
            call(*arguments)
        except Exception as raised:
            self._subscriber = None
            report_dropped(raised, "§2.13")
