"""Checks of ``cancel``: signals after it, its duration, and dropped references (§1.8, §3)."""

# The checks have the names of the official Java kit, so that results of both kits can be compared.
# ruff: noqa: N802

from __future__ import annotations

import functools
import threading
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rstreams_fast.api import UNBOUNDED
from rstreams_fast.tck.outcome import RuleBroken
from rstreams_fast.tck.probes import ProbeSubscriber
from rstreams_fast.tck.publisher.sizes import ROUNDS, THREADS
from rstreams_fast.tck.references import expect_collected
from rstreams_fast.tck.verification import STRICT, check

if TYPE_CHECKING:
    from rstreams_fast.tck.publisher.verification import PublisherVerification as Kit

__all__ = ["CancelChecks"]

#: A cancelled publisher must stop before it has sent this many elements.
_MORE_THAN_IN_FLIGHT = 2500
#: The checks that elements stop immediately after a cancel use this many elements.
_MANY = 100
#: The kit cancels within on_next of the element with this number, counted from 1.
_CANCEL_AT = 3
#: Many correct implementations do not pass certain checks. So these checks wait only for this
#: fraction of the timeout.
_SHORT_PART = 1 / 6


class CancelChecks:
    """Checks of §1.8, §3.5, §3.7, §3.12 and §3.13."""

    # -- signals after a cancel --------------------------------------------------------------------

    @check("1.8", needs="elements on request")
    def beyond_spec108_cancelMustStopTheElementsInTheEnd(self: Kit) -> None:
        """After a cancel from within on_next, not all of 2500 requested elements come.
        Look at the loop that sends: it must check the cancelled state, at least now and then."""
        after, _ = self._cancel_within_on_next(UNBOUNDED, _MORE_THAN_IN_FLIGHT)
        if after >= _MORE_THAN_IN_FLIGHT - _CANCEL_AT:
            expected = "the elements stop some time after the cancel"
            raise RuleBroken("1.8", expected, f"all {_MORE_THAN_IN_FLIGHT} of them")

    @check("1.8", STRICT, needs="elements on request")
    def beyond_spec108_cancelFromWithinOnNextShouldStopTheElementsAtOnce(self: Kit) -> None:
        """After a cancel from within on_next, no further element comes. If another thread than the
        requesting thread sends the elements, a few may come.
        Look at the loop that sends: it should check the cancelled state before each element. If a
        thread sends batches of elements, set signals_after_cancel."""
        self._expect_cancel_at_once(_MANY)

    @check("1.8", STRICT, needs="elements on request")
    def beyond_spec108_cancelShouldStopUnboundedDemandAtOnce(self: Kit) -> None:
        """Even if the demand is unbounded, elements stop after a cancel from within on_next.
        Look at the loop for unbounded demand, if there is one: it should check the cancelled state
        before each element."""
        self._expect_cancel_at_once(UNBOUNDED)

    def _expect_cancel_at_once(self: Kit, demand: int) -> None:
        after, synchronous = self._cancel_within_on_next(demand, _MANY)
        allowed = 0 if synchronous else self.signals_after_cancel
        if after > allowed:
            expected = f"at most {allowed} elements after a cancel from within on_next"
            raise RuleBroken("1.8", expected, f"{after} elements after it")

    def _cancel_within_on_next(self: Kit, demand: int, elements: int) -> tuple[int, bool]:
        """Cancel after some elements. Return the number of elements that came after the cancel.

        Also return whether the requesting thread sent all elements.
        """
        threads = {threading.get_ident()}

        def react(me: ProbeSubscriber) -> None:
            threads.add(threading.get_ident())
            if me.received == _CANCEL_AT:
                me.cancel()

        subscriber = self._subscriber_of(elements, on_next=react, request=demand)
        subscriber.wait_for_elements(_CANCEL_AT, "3.8", f"{_CANCEL_AT} elements")
        self._expect_settled(subscriber)
        return subscriber.received - _CANCEL_AT, len(threads) == 1

    @check("1.8", needs="on_subscribe")
    def beyond_spec108_cancelFromWithinOnSubscribeMustPreventAllSignals(self: Kit) -> None:
        """A subscriber that cancels from within on_subscribe gets no further signal.
        Look at what subscribe does after on_subscribe: it must check the cancelled state."""
        subscriber = self._subscriber(
            self._publisher_up_to(3), on_subscribe=lambda me: (me.cancel(), me.request(3))
        )
        subscriber.expect_silence("1.8", "nothing after a cancel from within on_subscribe")

    @check("3.5", needs="elements on request")
    def beyond_spec108_cancelRacingWithSignalsMustBeSafe(self: Kit) -> None:
        """One thread requests while another thread cancels. Signals do not overlap, and stop.
        Look at the state that request, cancel and the sending loop share without a lock."""
        self._needs_threads()
        subscribers = []
        for _ in range(ROUNDS):
            subscriber = self._subscriber_of(10)
            ask = functools.partial(subscriber.request, 1, 2, 1, 4, 1, 1, 1)
            self.environment.run_together(ask, subscriber.cancel, rule="3.5")
            subscribers.append(subscriber)
            if self._is_late():
                break
        self._expect_settled(*subscribers)

    @check("3.12", needs="elements on request")
    def required_spec312_cancelMustMakeThePublisherToEventuallyStopSignaling(self: Kit) -> None:
        """After a cancel in the middle of a stream, the elements stop.
        Look at the loop that sends: it must check the cancelled state."""
        subscriber = self._subscriber_of(20)
        subscriber.request(10, 5)
        subscriber.expect_element("3.12", "the first of the elements requested")
        subscriber.cancel()
        self._expect_settled(subscriber, rule="3.12")

    # -- duration and repetition of cancel ---------------------------------------------------------

    @check("3.5", STRICT, needs="elements on request")
    def beyond_spec305_cancelShouldReturnSoon(self: Kit) -> None:
        """The fastest of ten ``cancel()`` calls returns within ``responsivity`` seconds.
        Look at what cancel waits for, such as the end of a thread, a lock that is held while
        signalling, or the closing of a source."""

        def attempt() -> float:
            subscriber = self._subscriber_of(3, request=1)
            subscriber.wait_for_elements(1, "3.8", "an element")
            start = time.monotonic()
            subscriber.cancel()
            return time.monotonic() - start

        self._expect_soon("3.5", "cancel()", attempt)

    @check("3.5", needs="elements on request")
    def beyond_spec305_cancelMustReturnWhileOnNextRuns(self: Kit) -> None:
        """While on_next runs, another thread's cancel returns. It does not wait for on_next.
        Look at locks that are held while signalling: cancel must not take them."""
        self._needs_threads()
        returned: list[bool] = []

        def react(me: ProbeSubscriber) -> None:
            if me.received == 1:
                ended = self.environment.start(me.cancel, "3.15")
                returned.append(self.environment.wait_within_signal(ended.is_set, self.timeout))

        subscriber = self._subscriber_of(3, on_next=react, request=1)
        self.environment.wait(
            lambda: returned, "3.8", "an element", subscriber.came, timeout=2 * self.timeout
        )
        if not all(returned):
            came = "it waited until on_next had returned"
            raise RuleBroken("3.5", "cancel() returns while on_next runs", came)

    @check("3.5", needs="elements on request")
    def beyond_spec305_cancelFromManyThreadsMustBeSafe(self: Kit) -> None:
        """Several threads cancel at the same time. No call raises, and no signal follows.
        Look at cancel: one caller must do the work, and the other calls must have no effect."""
        self._needs_threads()
        subscriber = self._subscriber_of(10, request=1)
        subscriber.expect_element("3.8", "an element")
        self.environment.run_together(*[subscriber.cancel] * THREADS, rule="3.5")
        subscriber.request(1)
        subscriber.expect_silence("3.6", "nothing after four cancels")

    @check("3.7", needs="on_subscribe")
    def required_spec307_afterSubscriptionIsCancelledAdditionalCancelationsMustBeNops(
        self: Kit,
    ) -> None:
        """A second and a third cancel have no effect.
        Look at cancel: the first call must store that the subscription was cancelled."""
        subscriber = self._subscriber_of(1)
        for _ in range(3):
            subscriber.cancel()
        subscriber.expect_silence("3.7", "nothing for three cancels")

    @check("3.12", needs="elements on request")
    def beyond_spec312_requestAndCancelMustWorkFromFreeRunningThreads(self: Kit) -> None:
        """request and cancel work in new threads that the module threading did not make.
        Look at thread-locals, at checks of the thread's identity, and at code that looks for an
        event loop in the calling thread."""
        self._needs_threads()
        subscriber = self._subscriber_of(10)
        for _ in range(3):
            self._call_from_a_new_thread(lambda: subscriber.request(1), "3.12")
            subscriber.expect_element("3.8", "an element for a request from any thread")
        self._call_from_a_new_thread(subscriber.cancel, "3.12")
        subscriber.request(1)
        subscriber.expect_silence("3.12", "nothing after a cancel from any thread")

    # -- references to the subscriber --------------------------------------------------------------

    @check("3.13", needs="elements on request", establishes="references dropped by cancel")
    def required_spec313_cancelMustMakeThePublisherEventuallyDropAllReferencesToTheSubscriber(
        self: Kit,
    ) -> None:
        """After cancel, the publisher does not keep the subscriber alive.
        Look at registries, closures, thread-locals and tracebacks that refer to the subscriber."""
        self._expect_dropped("cancel", _take_one)

    @check("3.13", needs="references dropped by cancel")
    def beyond_spec313_theSubscriberMustBeDroppedWithoutAnyRequest(self: Kit) -> None:
        """A subscriber that cancels without any request is not kept alive.
        Look at references that subscribe stores and that only the first element clears."""
        self._expect_dropped("a cancel without request", ProbeSubscriber.cancel)

    @check("3.13", needs="references dropped by cancel")
    def beyond_spec313_theSubscriberMustBeDroppedAfterACancelWithinOnNext(self: Kit) -> None:
        """A subscriber that cancels from within on_next, with demand left, is not kept alive.
        Look at references that the sending loop keeps when it ends early."""

        def use(subscriber: ProbeSubscriber) -> None:
            subscriber.request(3)
            subscriber.expect_element("3.8", "an element")

        self._expect_dropped("a cancel from within on_next", use, on_next=ProbeSubscriber.cancel)

    @check("3.13", STRICT, needs="references dropped by cancel, on_complete")
    def beyond_spec313_theSubscriberShouldBeDroppedAfterTheEnd(self: Kit) -> None:
        """After on_complete the publisher does not keep the subscriber alive (§1.6).
        Look at references that only cancel clears."""

        def use(subscriber: ProbeSubscriber) -> None:
            subscriber.request(2)
            subscriber.wait_for_terminal("1.5", "an element and on_complete")

        self._expect_dropped("on_complete", use, publisher=self._publisher(1, completes=True))

    @check("3.13", STRICT, needs="references dropped by cancel, on_error for request(0)")
    def beyond_spec313_theSubscriberShouldBeDroppedAfterAnError(self: Kit) -> None:
        """After on_error the publisher does not keep the subscriber alive (§1.6).
        Look at errors that the publisher keeps: the traceback of an error keeps frames alive."""

        def use(subscriber: ProbeSubscriber) -> None:
            _provoke_error(subscriber)

        self._expect_dropped("on_error", use)

    @check("3.13", STRICT, needs="references dropped by cancel, on_error for request(0)")
    def beyond_spec313_theErrorShouldNotKeepTheSubscriber(self: Kit) -> None:
        """A program that keeps the error of on_error does not keep the subscriber alive.
        Look at where the error was caught: ``error.with_traceback(None)`` drops the frames."""
        self._expect_dropped("on_error, while its error is kept", _provoke_error, part=_SHORT_PART)

    @check("3.13", STRICT, needs="references dropped by cancel")
    def beyond_spec313_theCancelledSubscriptionShouldNotKeepTheSubscriber(self: Kit) -> None:
        """A program that keeps a cancelled subscription does not keep the subscriber alive.
        Look at cancel: the subscription itself should clear its reference."""

        def use(subscriber: ProbeSubscriber) -> object:
            _take_one(subscriber)
            return subscriber.subscription

        self._expect_dropped("cancel, while its subscription is kept", use, part=_SHORT_PART)

    def _expect_dropped(
        self: Kit,
        after: str,
        use: Callable[[ProbeSubscriber], object],
        *,
        publisher: Any = None,
        part: float = 1,
        **reactions: Any,
    ) -> None:
        """Expect that a subscriber is garbage-collected after ``use(subscriber)``.

        The kit keeps the publisher and the result of ``use`` alive. ``part`` is the fraction of the
        timeout for which the kit waits.
        """
        if publisher is None:
            publisher = self._publisher_up_to(3)

        def subscribe() -> tuple[weakref.ref[Any], object]:
            subscriber = self._subscriber(publisher, **reactions)
            kept = use(subscriber)
            return weakref.ref(subscriber), kept

        reference, kept = subscribe()
        expected = f"no reference to the subscriber after {after}"
        expect_collected(self.environment, reference, "3.13", expected, part)
        del kept


def _take_one(subscriber: ProbeSubscriber) -> None:
    subscriber.request(1)
    subscriber.expect_element("3.8", "an element before cancel")
    subscriber.cancel()


def _provoke_error(subscriber: ProbeSubscriber) -> BaseException:
    subscriber.request(-1)
    return subscriber.expect_error("3.9", "on_error for request(-1)")
