"""Verification of a publisher: the checks of the official kit, under the same names, and others.

The checks are in several classes, one for each part of the specification. These classes have no
base class. Their methods annotate ``self`` as ``Kit``, another name of ``PublisherVerification``,
because this class inherits them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, ClassVar

from rstreams_fast.api import UNBOUNDED
from rstreams_fast.tck.outcome import RAISED, NotApplicable, RuleBroken
from rstreams_fast.tck.probes import ProbeFailed, ProbeSubscriber
from rstreams_fast.tck.publisher.cancels import CancelChecks
from rstreams_fast.tck.publisher.races import RaceChecks
from rstreams_fast.tck.publisher.requests import RequestChecks
from rstreams_fast.tck.publisher.signals import SignalChecks
from rstreams_fast.tck.publisher.subscribers import SubscribersChecks
from rstreams_fast.tck.verification import Verification

__all__ = ["PublisherVerification"]

_ATTEMPTS = 10


class PublisherVerification(
    SignalChecks, SubscribersChecks, RequestChecks, CancelChecks, RaceChecks, Verification
):
    """Verifies a publisher: define ``create_publisher(elements)`` in a subclass."""

    max_elements: int = UNBOUNDED - 1
    """The most elements that a publisher of ``create_publisher`` can send. ``UNBOUNDED`` means that
    its streams never complete. Then the checks that need ``on_complete`` do not apply.
    """
    max_supported_subscribers: int = UNBOUNDED
    """How many subscribers a publisher can have at the same time."""
    bounded_depth: int = 1
    """How deep ``request`` and ``on_next`` may call each other (§3.3); 1 is recommended."""
    responsivity: float = 0.02
    """The fastest of ten ``request(1)`` or ``cancel()`` calls must return within this many seconds
    (§3.4, §3.5).
    """
    signals_after_cancel: int = 8
    """How many elements may come after a ``cancel()`` from within ``on_next``, if another thread
    than the requesting thread sends the elements. If the requesting thread sends them, no element
    may come.
    """

    essential_hook = "create_publisher"
    hooks: ClassVar[tuple[str, ...]] = (
        "create_publisher",
        "create_failed_publisher",
        "create_failing_publisher",
    )
    settings: ClassVar[tuple[str, ...]] = (
        *Verification.settings,
        "max_elements",
        "max_supported_subscribers",
        "bounded_depth",
        "responsivity",
        "signals_after_cancel",
    )

    def create_publisher(self, elements: int) -> Any:
        """Return a new publisher of ``elements`` elements.

        Args:
            elements: The exact number of elements; ``UNBOUNDED`` for a stream without end.
        """
        raise NotImplementedError("create_publisher(elements) is the hook that makes a publisher")

    def create_failed_publisher(self) -> Any:
        """Return a publisher whose subscribe calls ``on_subscribe``, then ``on_error``; or None."""
        return None

    def create_failing_publisher(self, elements: int) -> Any:  # noqa: ARG002
        """Return a publisher that fails after some elements (§1.4); or None, if that is impossible.

        Args:
            elements: The number of elements before the error.
        """
        return None

    # -- helpers of the checks ---------------------------------------------------------------------

    def _publisher(self, elements: int, *, completes: bool = False, subscribers: int = 1) -> Any:
        if elements > self.max_elements:
            raise NotApplicable(
                f"needs {elements} elements, and max_elements is {self.max_elements}"
            )
        if completes and self.max_elements == UNBOUNDED:
            raise NotApplicable("needs on_complete, and max_elements = UNBOUNDED says: never")
        self._needs_subscribers(subscribers)
        return self._make("create_publisher", elements)

    def _publisher_up_to(self, elements: int) -> Any:
        """Return a publisher of ``elements`` elements, or of ``max_elements`` if this is less."""
        return self._publisher(max(1, min(elements, self.max_elements)))

    def _needs_subscribers(self, count: int) -> None:
        if count > self.max_supported_subscribers:
            raise NotApplicable(
                f"needs {count} subscribers, and max_supported_subscribers is "
                f"{self.max_supported_subscribers}"
            )

    def _subscribe(self, publisher: Any, subscriber: Any, rule: str = "1.9") -> None:
        """Call ``publisher.subscribe(subscriber)``. If it raises, ``rule`` is broken."""
        self.environment.history.record_call_text(f"publisher.subscribe({subscriber.name})")
        try:
            self.environment.call(publisher.subscribe, subscriber)
        except RAISED as raised:
            self.environment.verify()
            rule = "2.13" if isinstance(raised, ProbeFailed) else rule
            raise RuleBroken(
                rule, "subscribe returns normally", f"it raised {raised!r}"
            ) from raised

    def _subscriber(
        self, publisher: Any, *, request: object = ..., **reactions: Any
    ) -> ProbeSubscriber:
        """Return a new subscriber of ``publisher`` that has requested ``request``, if given."""
        subscriber = ProbeSubscriber(self.environment, **reactions)
        self._subscribe(publisher, subscriber)
        subscriber.expect_subscription()
        if request is not ...:
            subscriber.request(request)
        return subscriber

    def _subscriber_of(
        self, elements: int, *, completes: bool = False, **how: Any
    ) -> ProbeSubscriber:
        """Return a new subscriber of a new publisher of ``elements`` elements.

        ``completes`` tells whether the check needs ``on_complete``. ``how``: see ``_subscriber``.
        """
        return self._subscriber(self._publisher(elements, completes=completes), **how)

    def _is_late(self) -> bool:
        """Whether the check has used up a third of the timeout.

        A check that repeats a call many times stops when this is true. So a slow implementation is
        called less often.
        """
        return self.environment.history.seconds() > self.timeout / 3

    def _wait_for_next_signal(self, subscriber: ProbeSubscriber) -> None:
        """Wait until the next signal comes, at most ``silence`` seconds. Called within a signal."""
        before = len(subscriber.signals)
        self.environment.wait_within_signal(
            lambda: len(subscriber.signals) > before, self.environment.silence
        )

    def _expect_all_requested(self, subscriber: ProbeSubscriber) -> None:
        count = subscriber.requested
        subscriber.wait_for_elements(count, "3.8", f"{count} elements, as requested")

    def _expect_soon(self, rule: str, call: str, attempt: Callable[[], float]) -> None:
        """Expect that the fastest of several attempts takes at most ``responsivity`` seconds.

        There are several attempts, because a busy machine may slow down some of them.
        """
        best = math.inf
        for _ in range(_ATTEMPTS):
            best = min(best, attempt())
            if best <= self.responsivity:
                return
        expected = f"{call} within {self.responsivity * 1000:.0f} ms"
        came = f"{best * 1000:.0f} ms at the best of {_ATTEMPTS} calls"
        raise RuleBroken(rule, expected, came)

    def _expect_settled(self, *subscribers: ProbeSubscriber, rule: str = "1.8") -> None:
        """Wait until no subscriber gets a signal for ``silence`` seconds."""

        def count() -> int:
            return sum(len(subscriber.signals) for subscriber in subscribers)

        def is_silent(before: int) -> bool:
            return self.environment.is_quiet(lambda: count() > before)

        deadline = time.monotonic() + self.timeout
        while not is_silent(count()):
            if time.monotonic() > deadline:
                came = f"signals go on after {self.timeout:g} s: {count()} so far"
                raise RuleBroken(rule, "signals stop after cancel", came)
