"""Checks of ``request``: its recursion, its duration, its demand and its argument (§3)."""

# The checks have the names of the official Java kit, so that results of both kits can be compared.
# ruff: noqa: N802

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

from rstreams_fast.api import UNBOUNDED
from rstreams_fast.tck.history import show
from rstreams_fast.tck.outcome import RuleBroken
from rstreams_fast.tck.probes import ProbeSubscriber
from rstreams_fast.tck.publisher.sizes import LONG_STREAM, THREADS
from rstreams_fast.tck.verification import PYTHON, STRICT, check

if TYPE_CHECKING:
    from rstreams_fast.tck.publisher.verification import PublisherVerification as Kit

__all__ = ["RequestChecks"]

#: If on_next is nested deeper than this, the kit assumes that the depth has no bound.
_BOUND = 50
_REQUESTS_PER_THREAD = 50
#: A negative request is a random number between minus this number and -1.
_MOST_NEGATIVE = 2**31
#: The message of the error for request(-1) should contain one of these texts.
_WORDS_OF_309 = ("3.9", "non-positive subscription request", "negative subscription request")


class RequestChecks:
    """Checks of §3.2 to §3.4, §3.6, §3.8, §3.9 and §3.17."""

    # -- recursion and duration of request ---------------------------------------------------------

    @check("3.2", needs="elements on request")
    def required_spec302_mustAllowSynchronousRequestCallsFromOnNextAndOnSubscribe(
        self: Kit,
    ) -> None:
        """request works from within on_subscribe and on_next.
        Look at locks held while signalling, and at requests before on_subscribe returns."""

        def react(me: ProbeSubscriber) -> None:
            if me.requested < 6:  # noqa: PLR2004
                me.request(1)

        subscriber = self._subscriber_of(
            6, on_subscribe=lambda me: me.request(1, 1, 1), on_next=react
        )
        subscriber.wait_for_elements(6, "3.2", "6 elements, all asked for from within signals")

    @check("3.3", needs="elements on request")
    def required_spec303_mustNotAllowUnboundedRecursion(self: Kit) -> None:
        """Each of 1200 elements is requested from within the previous on_next. The recursion of
        on_next has a bound.
        Look at request: while elements are being sent it must only add to the demand and return."""
        self._expect_depth(max(_BOUND, self.bounded_depth))

    @check("3.3", STRICT, needs="elements on request")
    def beyond_spec303_recursionShouldStayWithinTheBoundedDepth(self: Kit) -> None:
        """If each on_next requests the next element, calls of on_next are nested at most
        ``bounded_depth`` deep.
        Look at code that runs only later in a stream: when a buffer is full, or a burst ends."""
        self._expect_depth(self.bounded_depth)

    def _expect_depth(self: Kit, most: int) -> None:
        elements = LONG_STREAM if self.max_elements >= LONG_STREAM else most + 1

        def react(me: ProbeSubscriber) -> None:
            if me.deepest > most:
                me.cancel()
            elif me.received < elements and not (me.received > most and self._is_late()):
                me.request(1)

        subscriber = self._subscriber_of(elements, on_next=react, request=1)
        subscriber.wait_until(
            lambda: subscriber.received >= subscriber.requested or subscriber.deepest > most,
            "3.3",
            f"{elements} elements, each requested by the one before it",
        )
        if subscriber.deepest > most:
            came = f"{subscriber.deepest} deep at element {subscriber.received}"
            raise RuleBroken("3.3", f"on_next at most {most} deep in itself", came)

    @check("3.4", STRICT, needs="elements on request")
    def beyond_spec304_requestShouldReturnSoon(self: Kit) -> None:
        """The fastest of ten ``request(1)`` calls returns within ``responsivity`` seconds.
        Look at what request waits for: it should add demand and return, or send one element."""

        def attempt() -> float:
            subscriber = self._subscriber_of(3)
            start = time.monotonic()
            subscriber.request(1)
            return time.monotonic() - start

        self._expect_soon("3.4", "request(1)", attempt)

    # -- demand ------------------------------------------------------------------------------------

    @check("3.6", needs="on_subscribe")
    def required_spec306_afterSubscriptionIsCancelledRequestMustBeNops(self: Kit) -> None:
        """Requests after cancel bring no signal.
        Look at request: it must check whether the subscription was cancelled."""
        self._expect_nothing_after_cancel(1, 1, 1)

    @check("3.6", STRICT, needs="on_subscribe")
    def beyond_spec306_afterCancelInvalidRequestsMustBeNops(self: Kit) -> None:
        """After cancel, request(0), request("1") and request(None) bring no signal either.
        Look at the order of the checks in request: first check the cancelled state."""
        self._expect_nothing_after_cancel(0, -1, "1", None, 1.5, True)

    def _expect_nothing_after_cancel(self: Kit, *requests: object) -> None:
        subscriber = self._subscriber(self._publisher_up_to(3))
        subscriber.cancel()
        subscriber.request(*requests)
        subscriber.expect_silence("3.6", "nothing for requests after cancel")

    @check("3.8", STRICT, needs="elements on request")
    def beyond_spec308_demandFromSeveralThreadsShouldAddUp(self: Kit) -> None:
        """Four threads request fifty times each: two hundred elements come, one at a time.
        Look at how demand is added: ``demand += n`` is two steps. (By §2.7 a subscriber's requests
        should not overlap.)"""
        self._needs_threads()
        subscriber = self._subscriber_of(THREADS * _REQUESTS_PER_THREAD + 10)

        def ask() -> None:
            for _ in range(_REQUESTS_PER_THREAD):
                if self._is_late():
                    break
                subscriber.request(1)

        self.environment.run_together(*[ask] * THREADS, rule="3.4")
        self._expect_all_requested(subscriber)
        subscriber.expect_nothing_more("1.1", "no more elements than requested")

    @check("3.8", needs="elements on request")
    def beyond_spec308_demandFromWithinSignalsMustAddUp(self: Kit) -> None:
        """Requests within signals add to the demand that is left: all requested elements come.
        Look at request: it must add ``n`` to the demand that is left."""
        portions = {1: 3, 2: 1}  # maps the number of received elements to the next request

        def react(me: ProbeSubscriber) -> None:
            if me.received in portions:
                me.request(portions[me.received])

        subscriber = self._subscriber_of(
            10, on_subscribe=lambda me: me.request(1, 2), on_next=react
        )
        subscriber.wait_for_elements(7, "3.8", "7 elements for 1 + 2 + 3 + 1 requested")
        subscriber.expect_nothing_more("1.1", "no more than the 7 requested")

    @check("3.17", needs="on_complete")
    def required_spec317_mustSupportAPendingElementCountUpToLongMaxValue(self: Kit) -> None:
        """``request(2**63 - 1)`` brings every element and the end.
        Look at the type and the arithmetic of the demand."""
        self._expect_whole_stream(UNBOUNDED)

    @check("3.17", needs="on_complete")
    def required_spec317_mustSupportACumulativePendingElementCountUpToLongMaxValue(
        self: Kit,
    ) -> None:
        """Requests that add up to ``2**63 - 1`` bring every element and the end.
        Look at the addition of demand: it must not overflow."""
        self._expect_whole_stream(UNBOUNDED // 2, UNBOUNDED // 2, 1)

    @check("3.17", PYTHON, needs="on_complete")
    def beyond_spec317_aRequestThatFitsNoLongShouldCountAsUnbounded(self: Kit) -> None:
        """``request(2**63)`` and ``request(2**64)`` bring every element and the end.
        Look at the conversion of n: a larger int counts as 2**63 - 1, without OverflowError."""
        self._expect_whole_stream(UNBOUNDED + 1)
        self._expect_whole_stream(2**64)

    def _expect_whole_stream(self: Kit, *requests: int) -> None:
        subscriber = self._subscriber_of(3, completes=True)
        subscriber.request(*requests)
        subscriber.expect_elements(3, "3.17")
        subscriber.expect_completion("3.17", "on_complete after the third and last element")

    @check("3.17", needs="elements on request")
    def required_spec317_mustNotSignalOnErrorWhenPendingAboveLongMaxValue(self: Kit) -> None:
        """Demand far above ``2**63 - 1`` counts as unbounded and is no error.
        Look at the addition of demand: it must not go beyond 2**63 - 1."""
        calls = 10

        def react(me: ProbeSubscriber) -> None:
            if me.received <= calls:
                me.request(UNBOUNDED - 1)
            elif me.received == calls + 1:
                me.cancel()

        subscriber = self._subscriber_of(100, on_next=react, request=1)
        subscriber.wait_until(
            lambda: subscriber.received > calls or subscriber.terminal,
            "3.17",
            f"more than {calls} elements",
        )
        if subscriber.terminal is not None and subscriber.terminal[0] == "on_error":
            came = show(subscriber.terminal[1])
            raise RuleBroken("3.17", "no on_error for too much demand", came)

    @check("3.17", needs="elements on request")
    def beyond_spec317_demandMustNotWrapAround(self: Kit) -> None:
        """Requests from within on_next add up to ``2**63``, then to ``2**64``. Elements still come.
        Look at the addition of demand: it must stay at 2**63 - 1, not begin again at zero."""

        def react(me: ProbeSubscriber) -> None:
            if me.received == 1:
                me.request(UNBOUNDED, 1, UNBOUNDED, 1)
            elif me.received == 3:  # noqa: PLR2004 - the stream may be endless
                me.cancel()

        subscriber = self._subscriber_of(3, on_next=react, request=1)
        subscriber.expect_elements(3, "3.17")

    @check("3.17", needs="elements on request")
    def beyond_spec317_manySmallRequestsMustAddUp(self: Kit) -> None:
        """1200 calls of ``request(1)``, one after the other, bring 1200 elements.
        Look at what each request changes, such as a queue that fills or a counter that wraps."""
        subscriber = self._subscriber_of(LONG_STREAM)
        while subscriber.requested < LONG_STREAM and not self._is_late():
            subscriber.request(1)
        count = subscriber.requested
        subscriber.wait_for_elements(count, "3.17", f"{count} elements for {count} requests")

    # -- invalid requests --------------------------------------------------------------------------

    @check("3.9", needs="on_subscribe", establishes="on_error for request(0)")
    def required_spec309_requestZeroMustSignalIllegalArgumentException(self: Kit) -> None:
        """After ``request(0)`` the publisher calls on_error.
        Look at the first lines of request: the error goes to on_error, and is not raised."""
        self._expect_request_error(0)

    @check("3.9", needs="on_error for request(0)")
    def required_spec309_requestNegativeNumberMustSignalIllegalArgumentException(self: Kit) -> None:
        """After a negative request the publisher calls on_error.
        Look at the first lines of request: the error goes to on_error, and is not raised."""
        self._expect_request_error(-random.randint(1, _MOST_NEGATIVE))  # noqa: S311

    @check("3.9", STRICT, needs="on_error for request(0)")
    def optional_spec309_requestNegativeNumberMaySignalIllegalArgumentExceptionWithSpecificMessage(
        self: Kit,
    ) -> None:
        """The text of the error for a negative request names the rule 3.9.
        Look at the text of the ValueError."""
        text = str(self._expect_request_error(-random.randint(1, _MOST_NEGATIVE)))  # noqa: S311
        if not any(words in text for words in _WORDS_OF_309):
            raise RuleBroken("3.9", f"a text with one of {_WORDS_OF_309}", show(text))

    @check("3.9", PYTHON, needs="on_error for request(0)")
    def beyond_spec309_theErrorShouldBeAValueError(self: Kit) -> None:
        """The error for ``request(0)`` is a ValueError. (In Java: an IllegalArgumentException.)
        Look at the type of the error that request passes to on_error."""
        self._expect_request_error(0, ValueError)

    @check("3.9", PYTHON, needs="on_error for request(0)")
    def beyond_spec309_aRequestOfNoIntShouldSignalATypeError(self: Kit) -> None:
        """The error for request(True), request(1.5), request("1") and request(None) is a TypeError.
        Look at the check of n: it must come before any comparison or addition, and refuse a bool.
        """
        for n in (True, 1.5, "1", None):
            self._expect_request_error(n, TypeError)

    def _expect_request_error(
        self: Kit, n: object, error: type[BaseException] = BaseException
    ) -> BaseException:
        subscriber = self._subscriber(self._publisher_up_to(10), request=n)
        what = "on_error" if error is BaseException else f"on_error({error.__name__})"
        return subscriber.expect_error("3.9", f"{what} for request({show(n)})", error)

    @check("3.9", STRICT, needs="elements on request, on_error for request(0)")
    def beyond_spec309_anInvalidRequestFromWithinOnNextShouldBeSignalledAfterIt(self: Kit) -> None:
        """After ``request(0)`` from within on_next, on_error comes when on_next has returned.
        Look at request: it should leave the error to the loop that sends."""
        within: list[str] = []

        def react(me: ProbeSubscriber) -> None:
            me.request(0)
            if me.terminal is not None:
                within.append("on_error within on_next")

        subscriber = self._subscriber_of(10, on_next=react, request=5)
        subscriber.wait_for_terminal("3.9", "on_error for request(0)")
        subscriber.expect_nothing_more("1.7", "nothing after on_error")
        if within and self.bounded_depth == 1:
            raise RuleBroken("1.3", "on_error after on_next has returned", within[0])
