"""``Environment``: the history, the threads, the waits and the clean-up of one check."""

from __future__ import annotations

import _thread
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from rstreams_fast.tck.history import History
from rstreams_fast.tck.loop import LoopThread
from rstreams_fast.tck.outcome import RAISED, CheckAbandoned, RuleBroken

__all__ = ["Environment", "frequent_switches"]

#: The switch interval of the interpreter, in seconds, while a check lets threads race. It is short,
#: so that the interpreter switches between the threads often.
_SWITCH_INTERVAL = 1e-5
#: A thread that sends a signal to an abandoned check sleeps for this many seconds.
_SLEEP_IN_ABANDONED = 0.05


class Environment:
    """The state that a check shares with its probes: the kit's subscribers and publishers.

    A probe may find a broken rule in any thread. The probe then *flags* the rule: it stores the
    error, which the check raises when it next waits for an event, or at its end. The kit waits at
    most ``timeout`` seconds for an event that must come. To see that no event comes, the kit waits
    ``silence`` seconds.
    """

    def __init__(self, *, timeout: float, silence: float, on_loop: bool, rule: str = "") -> None:
        self.rule = rule  #: this rule counts as broken if the check must be abandoned
        self.timeout = timeout
        self.silence = silence
        self.history = History()
        self.changed = threading.Condition()
        self.ended = threading.Event()  #: set when the check has ended, or was abandoned
        self.abandoned = False
        self._loop = LoopThread() if on_loop else None
        self._flagged: list[RuleBroken] = []
        self._subscribers: list[weakref.ref[Any]] = []
        self._names: dict[str, int] = {}

    # -- broken rules ------------------------------------------------------------------------------

    def flag(self, rule: str, expected: str, came: str) -> None:
        """Record that ``rule`` is broken. Any thread may call this method."""
        with self.changed:
            self._flagged.append(RuleBroken(rule, expected, came))
            self.changed.notify_all()

    def abandon(self, rule: str, expected: str, came: str) -> None:
        """Record that ``rule`` is broken, and stop waiting for the check, which may never end."""
        with self.changed:
            self.flag(rule, expected, came)
            self.abandoned = True
            self.ended.set()

    def end_calling_thread(self) -> NoReturn:
        """Raise ``CheckAbandoned``, to end a thread that sends signals to an abandoned check.

        The thread sleeps first. If it catches the exception and sends further signals, it sends
        them slowly, and does not slow down other checks.
        """
        time.sleep(_SLEEP_IN_ABANDONED)
        raise CheckAbandoned

    def notify(self) -> None:
        """Let the waiting threads check their conditions. Any thread may call this method."""
        with self.changed:
            self.changed.notify_all()

    def verify(self) -> None:
        """Raise the first ``RuleBroken`` that ``flag`` has recorded, if there is one."""
        flagged = self.first_flagged()
        if flagged is not None:
            raise flagged

    def first_flagged(self) -> RuleBroken | None:
        with self.changed:
            return self._flagged[0] if self._flagged else None

    # -- waiting for a condition -------------------------------------------------------------------

    def wait(
        self,
        condition: Callable[[], object],
        rule: str,
        expected: str,
        came: Callable[[], str],
        *,
        timeout: float | None = None,
    ) -> None:
        """Wait until ``condition()`` is true. If it is false at the time-out, ``rule`` is broken.

        The condition is checked again after each signal. ``timeout`` is in seconds.
        """
        timeout = self.timeout if timeout is None else timeout
        if not self._happens_within(condition, timeout):
            raise RuleBroken(rule, expected, f"{came()} within {timeout:g} s")

    def is_quiet(self, noise: Callable[[], object]) -> bool:
        """Return whether ``noise()`` stays false for ``silence`` seconds.

        If a rule was flagged, raise its error.
        """
        return not self._happens_within(noise, self.silence)

    def expect_quiet(
        self, noise: Callable[[], object], rule: str, expected: str, came: Callable[[], str]
    ) -> None:
        if not self.is_quiet(noise):
            raise RuleBroken(rule, expected, came())

    def _happens_within(self, event: Callable[[], object], seconds: float) -> bool:
        end = time.monotonic() + seconds
        with self.changed:
            while True:
                self.verify()
                if event():
                    return True
                left = end - time.monotonic()
                if left <= 0:
                    return False
                self.changed.wait(left)

    def wait_within_signal(self, condition: Callable[[], object], seconds: float) -> bool:
        """Wait until ``condition()`` is true, at most ``seconds``. Return whether it is true.

        The kit's subscriber calls this within a signal. So no error of a flagged rule is raised:
        the implementation, which calls the signal, would get the error.
        """
        with self.changed:
            return bool(self.changed.wait_for(condition, seconds))

    # -- calling the implementation ----------------------------------------------------------------

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call ``function`` of the implementation, on the kit's event loop if there is one."""
        if self._loop is None or self._loop.is_current():
            return function(*args)
        return self._loop.call(function, *args, timeout=self.timeout)

    def name(self, kind: str) -> str:
        """Return a name for messages: ``kind`` for the first object, then ``kind-2``, and so on."""
        number = self._names[kind] = self._names.get(kind, 0) + 1
        return kind if number == 1 else f"{kind}-{number}"

    # -- calls in new threads ----------------------------------------------------------------------

    def start(self, call: Callable[[], object], rule: str) -> threading.Event:
        """Run ``call`` in a new thread that the module ``threading`` did not make.

        Return an event that is set when the call has ended. If ``call`` raises an exception,
        ``rule`` is broken.
        """
        ended = threading.Event()

        def main() -> None:
            try:
                call()
            except RAISED as raised:
                self.flag(rule, "calls from any thread return normally", f"one raised {raised!r}")
            finally:
                ended.set()
                self.notify()

        _thread.start_new_thread(main, ())
        return ended

    def run_together(self, *calls: Callable[[], object], rule: str) -> None:
        """Run the calls at the same time, each in its own thread, and wait until all return."""
        ready = threading.Barrier(len(calls))

        def together(call: Callable[[], object]) -> Callable[[], object]:
            def run() -> object:
                ready.wait(self.timeout)
                return call()

            return run

        with frequent_switches():
            ended = [self.start(together(call), rule) for call in calls]
            self.wait(
                lambda: all(event.is_set() for event in ended),
                rule,
                f"{len(calls)} calls from as many threads return",
                lambda: f"{sum(not event.is_set() for event in ended)} have not returned",
            )

    # -- clean-up at the end of the check ----------------------------------------------------------

    def cancel_at_end(self, subscriber: Any) -> None:
        """When the check ends, cancel the subscription of ``subscriber``, if that still exists."""
        self._subscribers.append(weakref.ref(subscriber))

    def release(self) -> None:
        for reference in self._subscribers:
            subscriber = reference()
            if subscriber is not None:
                subscriber.cancel_at_end()
        if self._loop is not None:
            self._loop.close(self.timeout)


@contextmanager
def frequent_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_INTERVAL)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
