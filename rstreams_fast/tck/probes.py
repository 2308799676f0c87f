"""``ProbeSubscriber``: the kit's own subscriber, which records signals and flags broken rules."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from rstreams_fast.tck.environment import Environment
from rstreams_fast.tck.history import show, show_call
from rstreams_fast.tck.outcome import RAISED, RuleBroken

__all__ = ["ProbeFailed", "ProbeSubscriber", "failing_function", "is_same"]

Signal = tuple[Any, ...]
Reaction = Callable[[Any], object]

#: The largest number of signals in a message. The history has all signals.
_SHOWN = 8
#: A check is abandoned when a subscriber has got this many elements. No check requests so many.
_MOST_ELEMENTS = 10_000
_SUBSCRIPTION = ("request", "cancel")


class ProbeFailed(Exception):
    """The exception that the kit's subscribers raise, to see whether a caller gets it (§2.13)."""


def failing_function(where: str) -> Callable[..., NoReturn]:
    """Return a function that raises ``ProbeFailed(where)``."""

    def fail(*_arguments: object) -> NoReturn:
        raise ProbeFailed(where)

    return fail


def is_same(one: Any, other: Any) -> bool:
    """Return whether two elements are the same object, or equal.

    If ``==`` raises or gives no truth value (as with arrays), or if an element is not equal to
    itself (NaN), the elements are compared by ``repr``. If ``repr`` raises, two elements of the
    same type count as the same.
    """
    if one is other:
        return True
    try:
        if one == other:
            return True
        if one == one:  # noqa: PLR0124
            return False
    except RAISED as raised:
        del raised
    try:
        return type(one) is type(other) and repr(one) == repr(other)
    except RAISED:
        return type(one) is type(other)


class ProbeSubscriber:
    """A subscriber that records every signal. Only a call of its ``request`` requests elements.

    The check may pass *reactions*: functions that the subscriber calls within its signals.
    """

    def __init__(
        self,
        environment: Environment,
        *,
        on_subscribe: Reaction | None = None,
        on_next: Reaction | None = None,
        on_terminal: Reaction | None = None,
    ) -> None:
        self._environment = environment
        self.name = environment.name("subscriber")
        self._subscription_name = self.name.replace("subscriber", "subscription")
        self.signals: list[Signal] = []  # all signals except on_subscribe
        self.subscription: Any = None
        self.requested = 0
        self.received = 0
        self.deepest = 0
        self.cancelled_after = -1  # how many elements came before cancel(); -1: no cancel yet
        self.terminal: Signal | None = None
        self._depth = 0
        self._read = 0
        self._unreturned: list[str] = []  # calls on the subscription that have not returned
        self._running: tuple[int, Signal] | None = None
        self._react_subscribe = on_subscribe
        self._react_next = on_next
        self._react_terminal = on_terminal
        environment.cancel_at_end(self)

    # -- the methods of a subscriber ---------------------------------------------------------------

    def on_subscribe(self, subscription: Any, /) -> None:
        with self._signal("on_subscribe"):
            # Do not use isinstance: it would not find methods that __getattr__ provides.
            if not all(callable(getattr(subscription, each, None)) for each in _SUBSCRIPTION):
                expected = "on_subscribe with a subscription (request and cancel)"
                self._environment.flag("1.9", expected, show(subscription))
            if self.subscription is not None:
                self._environment.flag("2.12", "one on_subscribe", "a second on_subscribe")
                return
            self.subscription = subscription
            self._environment.notify()
            if self._react_subscribe is not None:
                self._react_subscribe(self)

    def on_next(self, element: Any, /) -> None:
        with self._signal("on_next", element):
            if self._react_next is not None:
                self._react_next(self)

    def on_error(self, error: BaseException, /) -> None:
        with self._signal("on_error", error):
            if not isinstance(error, BaseException):
                self._environment.flag("1.4", "on_error with an exception", show(error))
            if self._react_terminal is not None:
                self._react_terminal(self)

    def on_complete(self) -> None:
        with self._signal("on_complete"):
            if self._react_terminal is not None:
                self._react_terminal(self)

    @contextmanager
    def _signal(self, *signal: Any) -> Iterator[None]:
        """Record a signal, and check the rules for it. The ``with`` block handles the signal."""
        me = threading.get_ident()
        deeper = signal[0] == "on_next"
        if self._environment.abandoned:
            self._environment.end_calling_thread()
        with self._environment.changed:
            self._environment.history.add(f"{self.name}.{show_call(*signal)}")
            self._judge(signal, me)
            if signal[0] != "on_subscribe":
                self.signals.append(signal)
            outermost = self._running is None
            if outermost:
                self._running = (me, signal)
            self._depth += deeper
            self.deepest = max(self.deepest, self._depth)
            self._environment.changed.notify_all()
        try:
            yield
        finally:
            with self._environment.changed:
                self._depth -= deeper
                if outermost:
                    self._running = None
                    self._depth = 0
                self._environment.changed.notify_all()

    def _judge(self, signal: Signal, thread: int) -> None:
        flag, text = self._environment.flag, show_call(*signal)
        if self._running is not None and self._running[0] != thread:
            other = show_call(*self._running[1])
            flag("1.3", "one signal at a time", f"{text} while another thread is inside {other}")
        if self.subscription is None and signal[0] != "on_subscribe":
            flag("1.9", "on_subscribe before any other signal", text)
        if self.terminal is not None:
            flag("1.7", f"nothing after {show_call(*self.terminal)}", f"{text} after it")
        if signal[0] == "on_next":
            self.received += 1
            if self.received > self.requested:
                expected = f"at most {self.requested} elements, as requested"
                flag("1.1", expected, f"{text} is element {self.received}")
            if signal[1] is None:
                flag("2.13", "no element is None", f"element {self.received} is None")
            if self.received == _MOST_ELEMENTS:
                self._abandon_check()
        elif signal[0] != "on_subscribe":
            self.terminal = self.terminal or signal

    def _abandon_check(self) -> None:
        """Abandon the check. Elements come without end, so the check might never end."""
        came = f"{self.received} elements, and they go on"
        if self._unreturned:
            came += f"; {self._unreturned[0]} has not returned"
        if self.cancelled_after >= 0:
            after = self.received - self.cancelled_after
            expected = "the elements stop some time after cancel()"
            self._environment.abandon("1.8", expected, f"{after} elements after it; {came}")
        else:
            expected = "an end of the elements, or a return of the call that asked for them"
            self._environment.abandon(self._environment.rule, expected, came)

    # -- methods that the check calls --------------------------------------------------------------

    def request(self, *portions: Any) -> None:
        """Call ``request(n)`` for each ``n`` in ``portions``. If it raises, §3.16 is broken."""
        for n in portions:
            with self._environment.changed:
                if type(n) is int and n > 0:
                    self.requested += n
            self._use_subscription("3.16", "request", n)

    def cancel(self) -> None:
        """Call ``subscription.cancel()``. If it raises, §3.15 is broken."""
        if self.cancelled_after < 0:
            self.cancelled_after = self.received
        self._use_subscription("3.15", "cancel")

    def _use_subscription(self, rule: str, method: str, *arguments: Any) -> None:
        environment = self._environment
        environment.history.record_call(self._subscription_name, method, *arguments)
        call = show_call(method, *arguments)
        self._unreturned.append(call)
        try:
            environment.call(getattr(self.subscription, method), *arguments)
        except RAISED as raised:
            rule = "2.13" if isinstance(raised, ProbeFailed) else rule
            environment.flag(rule, f"{call} returns normally", f"it raised {raised!r}")
        finally:
            self._unreturned.remove(call)

    def cancel_at_end(self) -> None:
        """Cancel the subscription if it has not ended. If ``cancel`` raises, only record this."""
        if self.subscription is not None and self.terminal is None:
            try:
                self._environment.call(self.subscription.cancel)
            except RAISED as raised:
                self._environment.history.add(f"the kit's last cancel raised {raised!r}")

    @property
    def elements(self) -> list[Any]:
        return [signal[1] for signal in self.signals if signal[0] == "on_next"]

    @property
    def unread(self) -> list[Signal]:
        """The signals that no ``expect_...`` method has checked yet."""
        return self.signals[self._read :]

    def came(self) -> str:
        texts = [show_call(*signal) for signal in self.unread]
        return ", ".join(texts[:_SHOWN]) + " ..." * (len(texts) > _SHOWN) or "nothing"

    def read_all(self) -> None:
        self._read = len(self.signals)

    def _expect(self, name: str, rule: str, expected: str) -> Signal:
        self._environment.wait(lambda: self.unread, rule, expected, self.came)
        signal = self.signals[self._read]
        self._read += 1
        if signal[0] != name:
            raise RuleBroken(rule, expected, show_call(*signal))
        return signal

    def expect_subscription(self, rule: str = "1.9") -> None:
        self._environment.wait(
            lambda: self.subscription is not None, rule, "on_subscribe", self.came
        )

    def expect_element(self, rule: str, expected: str) -> Any:
        return self._expect("on_next", rule, expected)[1]

    def expect_elements(self, count: int, rule: str, expected: str = "") -> None:
        what = expected or f"{count} elements"
        for index in range(count):
            self.expect_element(rule, f"{what} (element {index + 1})")

    def expect_completion(self, rule: str, expected: str) -> None:
        self._expect("on_complete", rule, expected)

    def expect_error(
        self, rule: str, expected: str, kind: type[BaseException] = BaseException
    ) -> BaseException:
        error = self._expect("on_error", rule, expected)[1]
        if not isinstance(error, kind):
            raise RuleBroken(rule, expected, show_call("on_error", error))
        return error

    def wait_for_any_signal(self, rule: str) -> str:
        """Wait for the first signal after ``on_subscribe``, and return its name."""
        self._environment.wait(lambda: self.signals, rule, "a signal", self.came)
        return str(self.signals[0][0])

    def expect_end(self) -> None:
        """Expect ``on_complete``. If it has not come, first request one more element.

        Some publishers signal ``on_complete`` only when more elements are requested.
        """
        if not self.unread:
            self.request(1)
        self.expect_completion("1.5", "on_complete after the last element")

    def expect_silence(self, rule: str, expected: str) -> None:
        """Expect that no signal is unread, and that no signal comes for ``silence`` seconds."""
        self._environment.expect_quiet(lambda: self.unread, rule, expected, self.came)

    def expect_nothing_more(self, rule: str, expected: str) -> None:
        """Ignore unread signals. Expect that no further signal comes for ``silence`` seconds."""
        self.read_all()
        self.expect_silence(rule, expected)

    # The following methods wait until this subscriber has a certain state. Signals stay unread.

    def wait_for_elements(self, count: int, rule: str, expected: str) -> None:
        self.wait_until(lambda: self.received >= count, rule, expected)

    def wait_for_terminal(self, rule: str, expected: str) -> None:
        self.wait_until(lambda: self.terminal, rule, expected)

    def wait_until(self, condition: Callable[[], object], rule: str, expected: str) -> None:
        """Wait until ``condition()`` is true.

        Each signal starts the time-out again, so a long stream may take longer than one time-out.
        """

        def state() -> str:
            end = show_call(*self.terminal) if self.terminal else "no end"
            return f"{self.received} elements, {end}"

        def goes_on() -> bool:
            return bool(condition()) or len(self.signals) > before

        while not condition():
            before = len(self.signals)
            self._environment.wait(goes_on, rule, expected, state)
        self._environment.verify()
