"""The environment of one check: its history, its threads, its waits and its clean-up."""

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

#: While threads race, the interpreter is made to switch between them often (seconds).
_SWITCH_INTERVAL = 1e-5
#: How long a thread sleeps that signals to an abandoned check (seconds).
_SLEEP_IN_ABANDONED = 0.05


class Environment:
    """The state that a check shares with its probes.

    A probe may find a broken rule in any thread. It then *flags* the rule: the next expectation of
    the check raises the error. The kit waits at most ``timeout`` seconds for an event that must
    come. To see that no event comes, it waits ``silence`` seconds.
    """

    def __init__(self, *, timeout: float, silence: float, on_loop: bool, rule: str = "") -> None:
        self.rule = rule  #: the rule of the check
        self.timeout = timeout
        self.silence = silence
        self.history = History()
        self.changed = threading.Condition()
        self.ended = threading.Event()  #: the check has ended, or was abandoned
        self.abandoned = False  #: the check was abandoned: signals may still come
        self._loop = LoopThread() if on_loop else None
        self._flagged: list[RuleBroken] = []
        self._subscribers: list[weakref.ref[Any]] = []
        self._names: dict[str, int] = {}

    # -- violations --------------------------------------------------------------------------------

    def flag(self, rule: str, expected: str, came: str) -> None:
        """Note that a rule is broken. Any thread may call this."""
        with self.changed:
            self._flagged.append(RuleBroken(rule, expected, came))
            self.changed.notify_all()

    def abandon(self, rule: str, expected: str, came: str) -> None:
        """Note that a rule is broken, and abandon the check: its thread may never end."""
        with self.changed:
            self.flag(rule, expected, came)
            self.abandoned = True
            self.ended.set()

    def end_calling_thread(self) -> NoReturn:
        """End the calling thread, which signals to an abandoned check.

        The thread sleeps first: if it catches the exception and goes on, it is slow at least.
        """
        time.sleep(_SLEEP_IN_ABANDONED)
        raise CheckAbandoned

    def notify(self) -> None:
        """Let all waiting expectations check their conditions. Any thread may call this."""
        with self.changed:
            self.changed.notify_all()

    def verify(self) -> None:
        """Raise the first violation that was flagged."""
        flagged = self.first_flagged()
        if flagged is not None:
            raise flagged

    def first_flagged(self) -> RuleBroken | None:
        with self.changed:
            return self._flagged[0] if self._flagged else None

    # -- waiting -----------------------------------------------------------------------------------

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

        The condition is checked again after each signal.
        """
        timeout = self.timeout if timeout is None else timeout
        if not self._happens_within(condition, timeout):
            raise RuleBroken(rule, expected, f"{came()} within {timeout:g} s")

    def is_quiet(self, noise: Callable[[], object]) -> bool:
        """Return whether ``noise()`` stays false for ``silence`` seconds.

        Flagged violations are raised.
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
        """Wait until ``condition()`` is true, at most ``seconds``; return whether it is true.

        Flagged violations are not raised, so this may be called within a signal.
        """
        with self.changed:
            return bool(self.changed.wait_for(condition, seconds))

    # -- calling the implementation ----------------------------------------------------------------

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function of the implementation: on the kit's event loop, if any, or here."""
        if self._loop is None or self._loop.is_current():
            return function(*args)
        return self._loop.call(function, *args, timeout=self.timeout)

    def name(self, kind: str) -> str:
        """Return a new name: ``kind`` for the first object of a kind, ``kind-2`` for the next."""
        number = self._names[kind] = self._names.get(kind, 0) + 1
        return kind if number == 1 else f"{kind}-{number}"

    # -- threads -----------------------------------------------------------------------------------

    def start(self, call: Callable[[], object], rule: str) -> threading.Event:
        """Run ``call`` in a new thread that the module ``threading`` did not make.

        Return an event that is set when the call has ended. An exception of ``call`` breaks
        ``rule``.
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
        """Run every call in a thread of its own, all at once, and wait for all."""
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

    # -- clean-up ----------------------------------------------------------------------------------

    def cancel_at_end(self, subscriber: Any) -> None:
        """Cancel this subscriber's subscription at the end of the check, if it still exists."""
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
