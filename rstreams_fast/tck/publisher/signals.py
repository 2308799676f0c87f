"""Checks of a publisher's signals: their number, their order, and the end (§1.1 to §1.7)."""

# The checks have the names of the official Java kit, so that results of both kits can be compared.
# ruff: noqa: N802

from __future__ import annotations

from typing import TYPE_CHECKING

from rstreams_fast.api import UNBOUNDED
from rstreams_fast.tck.outcome import NotApplicable, RuleBroken
from rstreams_fast.tck.probes import ProbeSubscriber
from rstreams_fast.tck.publisher.sizes import LONG_STREAM, ROUNDS
from rstreams_fast.tck.verification import STRICT, check

if TYPE_CHECKING:
    from rstreams_fast.tck.publisher.verification import PublisherVerification as Kit

__all__ = ["SignalChecks"]

_ELEMENTS_BEFORE_FAILURE = 3


class SignalChecks:
    """Checks of §1.1 to §1.7."""

    # -- the number of elements --------------------------------------------------------------------

    @check("1.1", needs="on_subscribe", establishes="elements on request")
    def required_spec101_subscriptionRequestMustResultInTheCorrectNumberOfProducedElements(
        self: Kit,
    ) -> None:
        """No element comes before a request. After requests, as many elements come as requested.
        Look at where demand is read, and whether it is counted down for each element."""
        subscriber = self._subscriber(self._publisher_up_to(5))
        subscriber.expect_silence("1.1", "nothing before the first request")
        subscriber.request(1)
        subscriber.expect_element("3.8", "an element after request(1)")
        if self.max_elements < 5:  # noqa: PLR2004
            return
        subscriber.expect_silence("1.1", "nothing more than the one requested")
        subscriber.request(1, 2)
        subscriber.expect_elements(3, "3.8", "3 elements after request(1), request(2)")
        subscriber.expect_silence("1.1", "nothing more than the four requested")

    @check("1.1", needs="elements on request")
    def beyond_spec101_aLongStreamMustKeepCountAndOrder(self: Kit) -> None:
        """1200 elements are requested in portions of different sizes. All come, none is None, and
        then the stream ends, unless max_elements says that it never does.
        Look at how demand is counted down between two bursts of elements."""
        subscriber = self._subscriber_of(LONG_STREAM)
        portion = 1
        while subscriber.requested < LONG_STREAM:
            subscriber.request(min(portion, LONG_STREAM - subscriber.requested))
            portion = portion * 2 % 251  # 1, 2, 4 ... 128, 5, 10 ...
            self._expect_all_requested(subscriber)
        if self.max_elements != UNBOUNDED:
            subscriber.expect_elements(LONG_STREAM, "1.5")
            subscriber.expect_end()

    @check("1.2", needs="on_complete")
    def required_spec102_maySignalLessThanRequestedAndTerminateSubscription(self: Kit) -> None:
        """Ten elements are requested from a stream of three: three come, then on_complete.
        Look at the end of the source: demand that is left must not keep the stream open."""
        subscriber = self._subscriber_of(3, completes=True, request=10)
        subscriber.expect_elements(3, "1.2")
        subscriber.expect_completion("1.2", "on_complete after the third and last element")

    # -- signals that overlap ----------------------------------------------------------------------

    @check("1.3", needs="on_complete")
    def stochastic_spec103_mustSignalOnMethodsSequentially(self: Kit) -> None:
        """Signals do not overlap while each on_next requests one more element, in many streams.
        Look at which thread may signal: only one at a time. Other threads leave their signals to
        that thread."""

        def ask(me: ProbeSubscriber) -> None:
            me.request(1)

        for _ in range(ROUNDS):
            subscriber = self._subscriber_of(10, completes=True, on_subscribe=ask, on_next=ask)
            subscriber.wait_for_terminal("1.3", "10 elements and on_complete, one at a time")
            if self._is_late():
                break

    @check("1.3", STRICT, needs="elements on request")
    def beyond_spec103_signalsMustNotOverlapWhenAnotherThreadRequests(self: Kit) -> None:
        """While on_next runs, another thread's request does not start a second on_next.
        Look at request: if another thread is signalling, request must add the demand and return.
        (By §2.7 a subscriber's requests should not overlap.)"""
        self._needs_threads()

        def react(me: ProbeSubscriber) -> None:
            if me.received == 1:
                ended = self.environment.start(lambda: me.request(1), "3.16")
                self.environment.wait_within_signal(
                    lambda: ended.is_set() or me.received > 1, self.environment.silence
                )

        subscriber = self._subscriber_of(3, on_next=react, request=1)
        self._expect_all_requested(subscriber)

    @check("1.3", needs="elements on request")
    def beyond_spec103_signalsMustNotOverlapOnSubscribe(self: Kit) -> None:
        """While on_subscribe runs, and has already called request, no other thread signals.
        Look at the thread that sends the elements: it must wait until on_subscribe returns."""

        def react(me: ProbeSubscriber) -> None:
            me.request(2)
            self._wait_for_next_signal(me)

        self._expect_all_requested(self._subscriber_of(3, on_subscribe=react))

    @check("1.3", needs="on_complete")
    def beyond_spec103_signalsMustNotOverlapOnNext(self: Kit) -> None:
        """While on_next runs, no other thread signals, neither the next element nor the end.
        Look at which thread may signal: only one at a time. Other threads leave their signals, even
        on_complete, to that thread."""
        subscriber = self._subscriber_of(
            3, completes=True, on_next=self._wait_for_next_signal, request=5
        )
        subscriber.wait_for_terminal("1.5", "3 elements and on_complete")

    @check("1.3", STRICT, needs="elements on request, on_error for request(0)")
    def beyond_spec103_anInvalidRequestOfAnotherThreadMustNotOverlapOnNext(self: Kit) -> None:
        """While on_next runs, another thread calls request(-1). on_error comes after on_next.
        Look at how request refuses n: the thread that is signalling must call on_error."""
        self._needs_threads()

        def react(me: ProbeSubscriber) -> None:
            if me.received == 1:
                self.environment.start(lambda: me.request(-1), "3.16")
                self._wait_for_next_signal(me)

        subscriber = self._subscriber_of(3, on_next=react, request=1)
        subscriber.wait_for_terminal("3.9", "on_error for request(-1)")

    # -- publishers that fail ----------------------------------------------------------------------

    @check("1.4")
    def optional_spec104_mustSignalOnErrorWhenFails(self: Kit) -> None:
        """subscribe of a failed publisher calls on_subscribe, then on_error, and does not raise.
        Look at what subscribe does when the publisher has failed."""
        self._expect_rejection("1.4")

    @check("1.9")
    def required_spec109_mayRejectCallsToSubscribeIfPublisherIsUnableOrUnwillingToServeThemRejectionMustTriggerOnErrorAfterOnSubscribe(  # noqa: E501
        self: Kit,
    ) -> None:
        """A publisher that rejects a subscriber calls on_subscribe, then on_error.
        Look at subscribe: to reject a subscriber, pass a subscription that does nothing to
        on_subscribe, then call on_error."""
        self._expect_rejection("1.9")

    def _expect_rejection(self: Kit, rule: str) -> ProbeSubscriber:
        publisher = self._make_optional("create_failed_publisher")
        subscriber = ProbeSubscriber(self.environment)
        self._subscribe(publisher, subscriber, rule)
        subscriber.expect_subscription(rule)
        subscriber.expect_error(rule, "on_error of the failed publisher")
        return subscriber

    @check("1.4")
    def beyond_spec104_aFailureAfterSomeElementsMustBeSignalled(self: Kit) -> None:
        """If a source fails after some elements, on_error comes, and not on_complete.
        Look at the code that catches the source's exception: it must not call on_complete."""
        publisher = self._make_optional("create_failing_publisher", _ELEMENTS_BEFORE_FAILURE)
        subscriber = self._subscriber(publisher)
        subscriber.request(_ELEMENTS_BEFORE_FAILURE, 1)
        subscriber.wait_for_terminal("1.4", "on_error after the elements")
        if subscriber.terminal == ("on_complete",):
            raise RuleBroken("1.4", "on_error, since the source failed", "on_complete()")
        subscriber.request(1)
        subscriber.expect_nothing_more("1.7", "nothing after on_error")

    # -- the end of a stream -----------------------------------------------------------------------

    @check("1.5", needs="elements on request", establishes="on_complete")
    def required_createPublisher1MustProduceAStreamOfExactly1Element(self: Kit) -> None:
        """``create_publisher(1)`` gives one element and ends.
        Look at create_publisher itself: many checks need exactly the number of elements that they
        pass to it. on_complete may wait for one more request, but not longer."""
        self._expect_exactly(1)

    @check("1.5", needs="on_complete")
    def required_createPublisher3MustProduceAStreamOfExactly3Elements(self: Kit) -> None:
        """``create_publisher(3)`` gives three elements and ends.
        Look at create_publisher itself: many checks need exactly the number of elements that they
        pass to it."""
        self._expect_exactly(3)

    @check("1.5", needs="on_complete")
    def required_spec105_mustSignalOnCompleteWhenFiniteStreamTerminates(self: Kit) -> None:
        """After the last element on_complete comes, and no further signal.
        Look at the end of the source. on_complete may wait for one more request, but not longer."""
        self._expect_exactly(3).expect_silence("1.7", "nothing after on_complete")

    def _expect_exactly(self: Kit, count: int) -> ProbeSubscriber:
        subscriber = self._subscriber_of(count, completes=True)
        for index in range(count):
            subscriber.request(1)
            subscriber.expect_element("1.5", f"element {index + 1} of {count}")
        subscriber.expect_end()
        return subscriber

    @check("1.5", needs="on_complete")
    def optional_spec105_emptyStreamMustTerminateBySignallingOnComplete(self: Kit) -> None:
        """An empty stream completes, and sends no element.
        Look at what happens when the source is empty from the start."""
        subscriber = self._subscriber_of(0, completes=True)
        if not subscriber.unread:
            subscriber.request(1)
        subscriber.wait_until(lambda: subscriber.signals, "1.5", "on_complete")
        if subscriber.received:
            raise NotApplicable("create_publisher(0) gives an element: no stream of it is empty")
        subscriber.expect_completion("1.5", "on_complete of an empty stream")
        subscriber.expect_silence("1.7", "nothing after on_complete")

    @check("1.5", STRICT, needs="on_complete")
    def beyond_spec105_onCompleteShouldNeedNoFurtherRequest(self: Kit) -> None:
        """All three elements of a stream are requested: on_complete comes without another request.
        Look at the code that finds the end of the source: it should also run when the demand is
        used up. A subscriber that needs no more elements would otherwise never get on_complete."""
        subscriber = self._subscriber_of(3, completes=True)
        subscriber.request(1, 2)
        subscriber.expect_elements(3, "1.5")
        self._wait_for_end(subscriber, "on_complete without a fourth request")

    @check("1.5", STRICT, needs="on_complete")
    def beyond_spec105_onCompleteOfAnEmptyStreamShouldNeedNoRequest(self: Kit) -> None:
        """An empty stream completes without a request.
        Look at a source that is empty from the start: it needs no demand to complete.
        """
        if (
            self._subscriber_of(0, completes=True, request=1).wait_for_any_signal("1.5")
            == "on_next"
        ):
            raise NotApplicable("create_publisher(0) gives an element: no stream of it is empty")
        self._wait_for_end(self._subscriber_of(0, completes=True), "on_complete without a request")

    def _wait_for_end(self: Kit, subscriber: ProbeSubscriber, expected: str) -> None:
        self.environment.wait(
            lambda: subscriber.terminal, "1.5", expected, subscriber.came, timeout=self.timeout / 6
        )

    @check("1.6", needs="on_complete")
    def beyond_spec106_afterTheEndRequestAndCancelMustBeNops(self: Kit) -> None:
        """After on_complete, request and cancel do nothing and raise nothing.
        Look at request and cancel: they must check whether the stream has ended."""
        self._expect_nothing_after_end("1.6", 1, 2, UNBOUNDED)

    @check("1.6", STRICT, needs="on_complete")
    def beyond_spec106_afterTheEndInvalidRequestsMustBeNops(self: Kit) -> None:
        """After on_complete, request(-1) and request("1") bring no signal either.
        Look at the order of the checks in request: first check whether the stream has ended."""
        self._expect_nothing_after_end("1.6", 0, -1, "1", None, 2**64)

    @check("1.7", needs="on_complete")
    def required_spec107_mustNotEmitFurtherSignalsOnceOnCompleteHasBeenSignalled(self: Kit) -> None:
        """Requests after on_complete bring no signal.
        Look at request: it must check whether the stream has ended."""
        self._expect_nothing_after_end("1.7", 10)

    def _expect_nothing_after_end(self: Kit, rule: str, *requests: object) -> None:
        subscriber = self._subscriber_of(1, completes=True, request=2)
        subscriber.expect_element(rule, "the only element")
        subscriber.expect_completion(rule, "on_complete after the only element")
        subscriber.request(*requests)
        subscriber.cancel()
        subscriber.cancel()
        subscriber.expect_nothing_more(rule, "nothing for calls after on_complete")

    @check("1.7", needs="on_error for request(0)")
    def beyond_spec107_nothingMustFollowOnErrorOfAnInvalidRequest(self: Kit) -> None:
        """After request(-1) and its on_error, requests bring no signal.
        Look at the state of the subscription after request(-1): it must have ended."""
        subscriber = self._subscriber(self._publisher_up_to(10), request=-1)
        subscriber.expect_error("3.9", "on_error for request(-1)")
        subscriber.request(5)
        subscriber.expect_silence("1.7", "nothing after on_error")

    @check("1.7", needs="on_complete, on_error for request(0)")
    def beyond_spec107_oneEndMustBeTheOnlyOne(self: Kit) -> None:
        """Two invalid requests are made within the last on_next: only one terminal signal comes.
        Look at terminal signals that wait to be sent: only the first one may be kept."""
        subscriber = self._subscriber_of(
            1, completes=True, on_next=lambda me: me.request(0, -1, 1), request=1
        )
        subscriber.wait_for_terminal("3.9", "on_error for request(0)")
        subscriber.expect_nothing_more("1.7", "nothing after the first terminal signal")

    @check("1.7")
    def beyond_spec107_nothingMustFollowOnErrorOfAFailedPublisher(self: Kit) -> None:
        """After the on_error of a failed publisher, requests bring no signal.
        Look at the subscription that a failed publisher makes: its methods must do nothing."""
        subscriber = self._expect_rejection("1.4")
        subscriber.request(1)
        subscriber.expect_silence("1.7", "nothing after on_error")
