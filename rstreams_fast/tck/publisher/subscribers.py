"""Checks of ``subscribe``, several subscribers (§1.9 to §1.11), and failing subscribers (§2)."""

# The checks have the names of the official Java kit, so that results of both kits can be compared.
# ruff: noqa: N802

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from rstreams_fast.tck.history import show
from rstreams_fast.tck.outcome import RuleBroken
from rstreams_fast.tck.probes import ProbeFailed, ProbeSubscriber, failing_function, is_same
from rstreams_fast.tck.publisher.sizes import THREADS
from rstreams_fast.tck.verification import PYTHON, STRICT, check

if TYPE_CHECKING:
    from rstreams_fast.tck.publisher.verification import PublisherVerification as Kit

__all__ = ["SubscribersChecks"]


class SubscribersChecks:
    """Checks of §1.9 to §1.11, §2.12 and §2.13."""

    # -- subscribe ---------------------------------------------------------------------------------

    @check("1.9", establishes="on_subscribe")
    def required_spec109_mustIssueOnSubscribeForNonNullSubscriber(self: Kit) -> None:
        """on_subscribe comes, once, before anything else.
        Look at subscribe: on_subscribe is the first signal in every case."""
        self._subscriber_of(1)

    @check("1.9", needs="on_subscribe")
    def required_spec109_subscribeThrowNPEOnNullSubscriber(self: Kit) -> None:
        """``subscribe(None)`` raises an exception of any type.
        Look at the first line of subscribe."""
        self._expect_raises("1.9", BaseException, self._publisher_up_to(3), "subscribe", None)

    @check("1.9", PYTHON, needs="on_subscribe")
    def beyond_spec109_subscribeOfNoneShouldRaiseTypeError(self: Kit) -> None:
        """``subscribe(None)`` raises TypeError, which stands for Java's NullPointerException.
        Look at the first line of subscribe."""
        self._expect_raises("1.9", TypeError, self._publisher_up_to(3), "subscribe", None)

    @check("1.9", PYTHON, needs="on_subscribe")
    def beyond_spec109_subscribeShouldRefuseWhatIsNoSubscriber(self: Kit) -> None:
        """``subscribe`` raises TypeError for an object without the four methods.
        Look at the first lines of subscribe: a later error would be far from its cause."""
        self._expect_raises("1.9", TypeError, self._publisher_up_to(3), "subscribe", object())

    @check("1.9", STRICT, needs="on_subscribe")
    def beyond_spec109_subscribingFromManyThreadsShouldServeEachOnce(self: Kit) -> None:
        """Several threads call subscribe at the same time. Each subscriber gets one on_subscribe.
        Look at state that several calls of subscribe share."""
        self._needs_threads()
        publisher = self._publisher_up_to(3)
        subscribers = [ProbeSubscriber(self.environment) for _ in range(THREADS)]
        self.environment.run_together(
            *(functools.partial(self._subscribe, publisher, each) for each in subscribers),
            rule="1.9",
        )
        for subscriber in subscribers:
            subscriber.expect_subscription()

    @check("1.10", STRICT, needs="on_subscribe")
    def beyond_spec110_theSameSubscriberTwiceShouldBeRejected(self: Kit) -> None:
        """Two threads subscribe the same subscriber at the same time. It gets one subscription.
        Look at the publisher's list of subscribers, if there is one: a thread must look the
        subscriber up and add it in one step. A publisher without a list need not pass this check.
        """
        self._needs_threads()
        publisher = self._publisher_up_to(3)
        subscriber = ProbeSubscriber(self.environment)

        def attempt() -> None:
            try:
                self.environment.call(publisher.subscribe, subscriber)
            except RuntimeError as refused:  # allowed, because the caller has broken §1.10
                self.environment.history.add(f"publisher refused by {refused!r}")

        self.environment.history.record_call_text(
            f"publisher.subscribe({subscriber.name}), in two threads"
        )
        self.environment.run_together(attempt, attempt, rule="1.10")
        subscriber.expect_subscription()

    # -- several subscribers -----------------------------------------------------------------------

    @check("1.11", STRICT, needs="on_subscribe", establishes="a second subscriber")
    def optional_spec111_maySupportMultiSubscribe(self: Kit) -> None:
        """Two subscribers of one publisher both get a subscription, and no error.
        Look at whether the publisher is meant for only one subscriber. If so, set
        max_supported_subscribers = 1."""
        subscribers = self._subscribers(2, 1)
        self.environment.expect_quiet(
            lambda: any(subscriber.unread for subscriber in subscribers),
            "1.11",
            "no signal before a request",
            lambda: "; ".join(f"{each.name}: {each.came()}" for each in subscribers),
        )

    def _subscribers(
        self: Kit, count: int, elements: int, *, completes: bool = False
    ) -> list[ProbeSubscriber]:
        publisher = self._publisher(elements, completes=completes, subscribers=count)
        return [self._subscriber(publisher) for _ in range(count)]

    @check("1.11", STRICT, needs="elements on request, a second subscriber")
    def optional_spec111_registeredSubscribersMustReceiveOnNextOrOnCompleteSignals(
        self: Kit,
    ) -> None:
        """Each of two subscribers gets an element or on_complete.
        Look at whether the second subscriber waits for ever."""
        subscribers = self._subscribers(2, 1)
        for subscriber in subscribers:
            subscriber.request(1)
        expected = "an element or on_complete for each of two subscribers"
        for subscriber in subscribers:
            self._expect_served(subscriber, 1, expected)
            if not subscriber.received and subscriber.terminal != ("on_complete",):
                raise RuleBroken("1.11", expected, show(subscriber.terminal))

    @check("1.11", STRICT, needs="on_complete, a second subscriber")
    def optional_spec111_multicast_mustProduceTheSameElementsInTheSameSequenceToAllOfItsSubscribersWhenRequestingOneByOne(  # noqa: E501
        self: Kit,
    ) -> None:
        """Three subscribers that request at different times get the same five elements in order.
        Look at how elements are kept for subscribers that request later."""
        first, second, third = self._subscribers(3, 5, completes=True)
        steps = [(first, 1), (second, 2), (first, 1), (third, 3), (third, 1), (third, 1)]
        for subscriber, count in [*steps, (second, 3), (first, 2), (first, 1)]:
            subscriber.request(count)
            subscriber.expect_elements(count, "1.11")
        for subscriber in (third, second, first):
            subscriber.expect_end()
        self._expect_equal(first, second, third)

    @check("1.11", STRICT, needs="elements on request, a second subscriber")
    def optional_spec111_multicast_mustProduceTheSameElementsInTheSameSequenceToAllOfItsSubscribersWhenRequestingManyUpfront(  # noqa: E501
        self: Kit,
    ) -> None:
        """Three subscribers that request all elements in one call get the same elements in order.
        Look at whether elements that the first subscriber got are kept for the others."""
        self._expect_same_upfront(completes=False)

    @check("1.11", STRICT, needs="on_complete, a second subscriber")
    def optional_spec111_multicast_mustProduceTheSameElementsInTheSameSequenceToAllOfItsSubscribersWhenRequestingManyUpfrontAndCompleteAsExpected(  # noqa: E501
        self: Kit,
    ) -> None:
        """Three subscribers that request all elements in one call get the same elements and
        on_complete.
        Look at whether on_complete reaches every subscriber."""
        self._expect_same_upfront(completes=True)

    def _expect_same_upfront(self: Kit, *, completes: bool) -> None:
        subscribers = self._subscribers(3, 3, completes=completes)
        for subscriber in subscribers:
            subscriber.request(4)
        for subscriber in subscribers:
            subscriber.expect_elements(3, "1.11")
        for subscriber in subscribers if completes else ():
            subscriber.expect_completion("1.11", "on_complete for each of three subscribers")
        self._expect_equal(*subscribers)

    @staticmethod
    def _expect_equal(first: ProbeSubscriber, *others: ProbeSubscriber) -> None:
        for other in others:
            if len(other.elements) != len(first.elements) or not all(
                map(is_same, other.elements, first.elements)
            ):
                raise RuleBroken(
                    "1.11",
                    f"the same elements as {first.name}: {show(first.elements)}",
                    f"{other.name} got {show(other.elements)}",
                )

    @check("1.11", needs="elements on request")
    def beyond_spec111_aSubscriberMustNotTouchAnother(self: Kit) -> None:
        """The requests and the cancel of one subscriber have no effect on another subscriber.
        Look at demand and the cancelled state: each subscription must have its own."""
        publisher = self._publisher(4)
        first, second = self._subscriber(publisher), self._subscriber(publisher)
        first.request(2)
        self._expect_no_element(second, "no element for a subscriber that has not asked")
        second.cancel()
        first.request(1)
        self._expect_served(first, 3, "3 elements, though the other subscriber has cancelled")

    @check("1.11", needs="elements on request")
    def beyond_spec111_aLaterSubscriberMustStartAfresh(self: Kit) -> None:
        """Demand that is left when a subscriber cancels does not pass to a later subscriber.
        Look at demand that is stored in the publisher: each subscription must have its own."""
        self._later_subscriber()

    @check("1.11", needs="elements on request")
    def beyond_spec111_aLaterSubscriberMustBeServed(self: Kit) -> None:
        """After a subscriber has cancelled with demand left, a later one gets what it requests.
        Look at state that remains after the cancel: it must not hide the later demand."""
        self._expect_later_subscriber_served()

    def _expect_later_subscriber_served(self: Kit) -> None:
        second = self._later_subscriber()
        second.request(1)
        self._expect_served(second, 1, "an element or the end for a later subscriber, on request")

    def _later_subscriber(self: Kit) -> ProbeSubscriber:
        """Return a second subscriber, after the first has cancelled with demand left."""
        publisher = self._publisher(10)
        first = self._subscriber(publisher, on_next=ProbeSubscriber.cancel)
        first.request(5)
        self._expect_served(first, 1, "an element, as requested")
        second = self._subscriber(publisher)
        self._expect_no_element(second, "no element before its request")
        return second

    def _expect_no_element(self: Kit, subscriber: ProbeSubscriber, expected: str) -> None:
        self.environment.expect_quiet(lambda: subscriber.received, "1.1", expected, subscriber.came)

    @staticmethod
    def _expect_served(subscriber: ProbeSubscriber, count: int, expected: str) -> None:
        """Expect ``count`` elements or a terminal signal: a publisher may reject a subscriber."""
        subscriber.wait_until(
            lambda: subscriber.received >= count or subscriber.terminal, "1.11", expected
        )

    # -- subscribers whose methods raise -----------------------------------------------------------

    @check("2.12", PYTHON, needs="elements on request")
    def beyond_spec212_aSubscriberWithHostileEqualityShouldBeServed(self: Kit) -> None:
        """A subscriber whose ==, hash, bool and len raise is served like any other.
        Look at ``subscriber in``, ``==``, dictionaries and ``if subscriber:``; use ``is``."""
        subscriber = _HostileSubscriber(self.environment)
        self._subscribe(self._publisher(3), subscriber)
        subscriber.expect_subscription()
        subscriber.request(3)
        subscriber.expect_elements(3, "2.12", "3 elements for a subscriber whose == raises")
        subscriber.cancel()

    @check("2.13", STRICT, needs="elements on request")
    def beyond_spec213_whatOnNextRaisesShouldNotLeaveRequest(self: Kit) -> None:
        """If on_next raises, the publisher cancels the subscription, and request does not raise.
        Look at the call of on_next: log the exception, do not signal it to the subscriber, and end
        the subscription."""
        subscriber = self._subscriber_of(10, on_next=failing_function("on_next"), request=3)
        subscriber.wait_for_elements(1, "3.8", "an element")
        subscriber.request(3)
        self._expect_settled(subscriber)
        subscriber.expect_element("2.13", "on_next")
        subscriber.expect_silence("2.13", _NOTHING_AFTER_RAISE.format("on_next"))

    @check("2.13", STRICT, needs="elements on request")
    def beyond_spec213_whatOnSubscribeRaisesShouldNotLeaveSubscribe(self: Kit) -> None:
        """If on_subscribe raises, the publisher cancels the subscription, and subscribe does not
        raise.
        Look at the call of on_subscribe: log the exception, and end the subscription."""

        def react(me: ProbeSubscriber) -> None:
            me.request(3)
            raise ProbeFailed("on_subscribe")

        subscriber = self._subscriber_of(10, on_subscribe=react)
        self._expect_settled(subscriber)
        subscriber.read_all()
        subscriber.request(3)
        subscriber.expect_silence("2.13", _NOTHING_AFTER_RAISE.format("on_subscribe"))

    @check("2.13", STRICT, needs="on_complete")
    def beyond_spec213_whatOnCompleteRaisesShouldNotLeaveRequest(self: Kit) -> None:
        """If on_complete raises, neither request nor subscribe raises the exception.
        Look at the call of on_complete: log the exception."""
        subscriber = self._subscriber_of(
            1, completes=True, on_terminal=failing_function("on_complete"), request=2
        )
        subscriber.wait_for_terminal("1.5", "an element and on_complete")
        subscriber.expect_nothing_more("1.7", "nothing after an on_complete that raised")

    @check("2.13", STRICT, needs="on_error for request(0)")
    def beyond_spec213_whatOnErrorRaisesShouldNotLeaveRequest(self: Kit) -> None:
        """If on_error raises, request does not raise the exception.
        Look at the call of on_error: log the exception."""
        subscriber = self._subscriber(
            self._publisher_up_to(3), on_terminal=failing_function("on_error"), request=-1
        )
        subscriber.wait_for_terminal("3.9", "on_error for request(-1)")
        subscriber.expect_nothing_more("1.7", "nothing after an on_error that raised")


_NOTHING_AFTER_RAISE = "nothing after {} has raised: the subscription counts as cancelled"


class _HostileSubscriber(ProbeSubscriber):
    __eq__ = failing_function("==")
    __hash__ = failing_function("hash")
    __bool__ = failing_function("bool")
    __len__ = failing_function("len")
