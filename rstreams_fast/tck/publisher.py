"""The publisher's side: the tests of the official kit, by its names."""

# The names of the tests are the official kit's, so that tables of both can be joined.
# ruff: noqa: N802

from __future__ import annotations

import random
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from rstreams_fast.api import UNBOUNDED
from rstreams_fast.tck.history import show
from rstreams_fast.tck.outcome import HookFailed, NotApplicable, RuleBroken
from rstreams_fast.tck.probes import ProbeSubscriber, same
from rstreams_fast.tck.references import expect_collected
from rstreams_fast.tck.verification import Verification, rule

__all__ = ["OfficialPublisherTests"]

#: §1.3 is looked at this often: a race needs luck.
_STOCHASTIC_ROUNDS = 20
#: What a negative request may be at the lowest.
_MOST_NEGATIVE = 2**31
#: What the message of the error for request(-1) should hold one of.
_WORDS_OF_309 = ("3.9", "non-positive subscription request", "negative subscription request")


class OfficialPublisherTests(Verification):
    """Hooks, settings, and the tests that the official kit has too."""

    #: The most elements ``create_publisher`` can give. ``UNBOUNDED`` says that its streams never
    #: complete: the tests that need ``on_complete`` do not apply then.
    max_elements: int = UNBOUNDED - 1
    #: How deep ``request`` and ``on_next`` may call each other (§3.3).
    bounded_depth: int = 1
    #: Seconds until a cancelled, ended or failed subscription must have let go (§3.13).
    reference_timeout: float = 3.0

    essential_hook = "create_publisher"
    hooks: ClassVar[tuple[str, ...]] = ("create_publisher", "create_failed_publisher")
    settings: ClassVar[tuple[str, ...]] = (
        *Verification.settings,
        "max_elements",
        "bounded_depth",
        "reference_timeout",
    )

    # -- hooks -------------------------------------------------------------------------------------

    def create_publisher(self, elements: int) -> Any:
        """A new publisher of exactly so many elements; of endlessly many for ``UNBOUNDED``."""
        raise NotImplementedError("create_publisher(elements) is the hook that makes a publisher")

    def create_failed_publisher(self) -> Any:
        """A publisher that answers ``subscribe`` by ``on_subscribe``, ``on_error``; or None."""
        return None

    # -- for the tests -----------------------------------------------------------------------------

    def _publisher(self, elements: int, *, completes: bool = False) -> Any:
        if elements > self.max_elements:
            raise NotApplicable(
                f"needs {elements} elements, and max_elements is {self.max_elements}"
            )
        if completes and self.max_elements == UNBOUNDED:
            raise NotApplicable("needs on_complete, and max_elements = UNBOUNDED says: never")
        publisher = self._hook("create_publisher", elements)
        if publisher is None:
            raise HookFailed("create_publisher returned None")
        return publisher

    def _failed_publisher(self) -> Any:
        publisher = self._hook("create_failed_publisher")
        if publisher is None:
            raise NotApplicable("there is no create_failed_publisher")
        return publisher

    def _subscribe(self, publisher: Any, subscriber: Any, rule_number: str = "1.9") -> None:
        """Subscribe; that this raises breaks §1.9."""
        self.environment.history.add("publisher", "subscribe", subscriber.name)
        try:
            self.environment.call(publisher.subscribe, subscriber)
        except Exception as raised:
            self.environment.verify()
            raise RuleBroken(
                rule_number, "subscribe returns normally", f"it raised {raised!r}"
            ) from raised

    def _subscriber(self, publisher: Any, **reactions: Callable[..., object]) -> ProbeSubscriber:
        """A new subscriber that has been given its subscription."""
        subscriber = ProbeSubscriber(self.environment, **reactions)
        self._subscribe(publisher, subscriber)
        subscriber.expect_subscription()
        return subscriber

    def _expect_settled(self, *subscribers: ProbeSubscriber, number: str = "1.8") -> None:
        """Wait until no subscriber is signalled for one silence window."""
        count = _SignalCount(subscribers)
        deadline = time.monotonic() + self.timeout
        while not self.environment.is_quiet(count.has_grown):
            count.remember()
            if time.monotonic() > deadline:
                raise RuleBroken(
                    number,
                    "signals stop after cancel",
                    f"after {self.timeout} s they have not: {count.signals()} of them",
                )

    # -- the hooks themselves ----------------------------------------------------------------------

    @rule("1.5")
    def required_createPublisher1MustProduceAStreamOfExactly1Element(self) -> None:
        """``create_publisher(1)`` gives one element and ends.

        Look at create_publisher itself: all other tests rest on its giving what it is asked for.
        """
        self._exactly(1)

    @rule("1.5")
    def required_createPublisher3MustProduceAStreamOfExactly3Elements(self) -> None:
        """``create_publisher(3)`` gives three elements and ends.

        Look at create_publisher itself: all other tests rest on its giving what it is asked for.
        """
        self._exactly(3)

    def _exactly(self, count: int) -> None:
        subscriber = self._subscriber(self._publisher(count, completes=True))
        for index in range(count):
            subscriber.request(1)
            subscriber.expect_element("1.5", f"element {index + 1} of {count}")
        subscriber.expect_end()

    @rule("")
    def required_validate_maxElementsFromPublisher(self) -> None:
        """``max_elements`` is a count.

        Look at the setting max_elements of the verification.
        """
        self._check_setting("max_elements")

    @rule("")
    def required_validate_boundedDepthOfOnNextAndRequestRecursion(self) -> None:
        """``bounded_depth`` is at least one.

        Look at the setting bounded_depth of the verification.
        """
        self._check_setting("bounded_depth")

    # -- 1: publisher ------------------------------------------------------------------------------

    @rule("1.1")
    def required_spec101_subscriptionRequestMustResultInTheCorrectNumberOfProducedElements(
        self,
    ) -> None:
        """Nothing comes before a request; then exactly as much as the requests add up to.

        Look at where demand is read, and whether it is counted down for each element.
        """
        subscriber = self._subscriber(self._publisher(5))
        subscriber.expect_silence("1.1", "nothing before the first request")
        subscriber.request(1)
        subscriber.expect_element("1.1", "an element after request(1)")
        subscriber.expect_silence("1.1", "nothing more than the one requested")
        subscriber.request(1)
        subscriber.request(2)
        subscriber.expect_elements(3, "1.1", "3 elements after request(1), request(2)")
        subscriber.expect_silence("1.1", "nothing more than the four requested")

    @rule("1.2")
    def required_spec102_maySignalLessThanRequestedAndTerminateSubscription(self) -> None:
        """Three elements of which ten were requested: three come, then on_complete.

        Look at the end of the source: demand that is left must not keep the stream open.
        """
        subscriber = self._subscriber(self._publisher(3, completes=True))
        subscriber.request(10)
        subscriber.expect_elements(3, "1.2")
        subscriber.expect_completion("1.2", "on_complete after the third and last element")

    @rule("1.3")
    def stochastic_spec103_mustSignalOnMethodsSequentially(self) -> None:
        """Signals never overlap while every on_next asks for one more, many times over.

        Look at who may emit: with several threads, one must hold the drain and the others leave
        their work to it.
        """
        for _ in range(_STOCHASTIC_ROUNDS):
            publisher = self._publisher(10, completes=True)
            subscriber = self._subscriber(
                publisher,
                on_subscribe=lambda me: me.request(1),
                on_next=lambda me, _element: me.request(1),
            )
            subscriber.wait_until(
                lambda me: me.terminal, "1.3", "10 elements and on_complete, one at a time"
            )

    @rule("1.4", strict=True)
    def optional_spec104_mustSignalOnErrorWhenFails(self) -> None:
        """A failed publisher says so by on_error, after on_subscribe, instead of raising.

        Look at what subscribe does when the publisher has failed: it must not raise.
        """
        self._expect_rejection("1.4")

    def _expect_rejection(self, number: str) -> ProbeSubscriber:
        publisher = self._failed_publisher()
        subscriber = ProbeSubscriber(self.environment)
        self._subscribe(publisher, subscriber, number)
        subscriber.expect_subscription(number)
        subscriber.expect_error(number, "on_error of the failed publisher")
        return subscriber

    @rule("1.5")
    def required_spec105_mustSignalOnCompleteWhenFiniteStreamTerminates(self) -> None:
        """After its last element the stream completes, and stays silent.

        Look at the end of the source. on_complete may wait for one more request, not longer.
        """
        subscriber = self._subscriber(self._publisher(3, completes=True))
        for _ in range(3):
            subscriber.request(1)
            subscriber.expect_element("1.5", "an element for each request(1)")
        subscriber.expect_end()
        subscriber.expect_silence("1.7", "nothing after on_complete")

    @rule("1.5")
    def optional_spec105_emptyStreamMustTerminateBySignallingOnComplete(self) -> None:
        """A stream of no elements completes, without one.

        Look at what happens when the source is empty from the start.
        """
        subscriber = self._subscriber(self._publisher(0, completes=True))
        if not subscriber.unread:
            subscriber.request(1)
        subscriber.expect_completion("1.5", "on_complete of an empty stream")
        subscriber.expect_silence("1.7", "nothing after on_complete")

    @rule("1.6")
    def untested_spec106_mustConsiderSubscriptionCancelledAfterOnErrorOrOnCompleteHasBeenCalled(
        self,
    ) -> None:
        """What a publisher considers is not seen; what it does is: see beyond_spec106 and 313."""

    @rule("1.7")
    def required_spec107_mustNotEmitFurtherSignalsOnceOnCompleteHasBeenSignalled(self) -> None:
        """Requests after on_complete bring nothing.

        Look at request after the end: it must see that the subscription is over.
        """
        subscriber = self._subscriber(self._publisher(1, completes=True))
        subscriber.request(10)
        subscriber.expect_element("1.7", "the only element")
        subscriber.expect_completion("1.7", "on_complete after the only element")
        subscriber.request(10)
        subscriber.expect_silence("1.7", "nothing after on_complete")

    @rule("1.7")
    def untested_spec107_mustNotEmitFurtherSignalsOnceOnErrorHasBeenSignalled(self) -> None:
        """The official kit cannot make a publisher fail; here see beyond_spec107."""

    @rule("1.8")
    def untested_spec108_possiblyCanceledSubscriptionShouldNotReceiveOnErrorOrOnCompleteSignals(
        self,
    ) -> None:
        """A terminal signal that was under way is allowed; see beyond_spec108 for what is not."""

    @rule("1.9")
    def untested_spec109_subscribeShouldNotThrowNonFatalThrowable(self) -> None:
        """No single test: in every test of this kit a subscribe that raises breaks §1.9."""

    @rule("1.9")
    def required_spec109_subscribeThrowNPEOnNullSubscriber(self) -> None:
        """``subscribe(None)`` raises TypeError, Python's word for it, to its caller.

        Look at the first line of subscribe.
        """
        publisher = self._publisher(0)
        self.environment.history.add("publisher", "subscribe", None)
        try:
            self.environment.call(publisher.subscribe, None)
        except TypeError:
            return
        except Exception as raised:
            raise RuleBroken(
                "1.9", "subscribe(None) raises TypeError", f"raised {raised!r}"
            ) from raised
        raise RuleBroken("1.9", "subscribe(None) raises TypeError", "it returned")

    @rule("1.9")
    def required_spec109_mustIssueOnSubscribeForNonNullSubscriber(self) -> None:
        """on_subscribe comes, once, before anything else.

        Look at subscribe: whatever it finds out, on_subscribe is the first signal.
        """
        self._subscriber(self._publisher(0))

    @rule("1.9")
    def required_spec109_mayRejectCallsToSubscribeIfPublisherIsUnableOrUnwillingToServeThemRejectionMustTriggerOnErrorAfterOnSubscribe(  # noqa: E501
        self,
    ) -> None:
        """A publisher that rejects a subscriber calls on_subscribe, then on_error.

        Look at how subscribe rejects: with a subscription that does nothing, then on_error.
        """
        self._expect_rejection("1.9")

    @rule("1.10")
    def untested_spec110_rejectASubscriptionRequestIfTheSameSubscriberSubscribesTwice(self) -> None:
        """§1.10 binds the caller; whether a publisher minds is beyond_optional_spec110."""

    @rule("1.11")
    def optional_spec111_maySupportMultiSubscribe(self) -> None:
        """Two subscribers of one publisher are both given a subscription, and no error.

        Look at max_elements and at whether the publisher is meant for one subscriber only.
        """
        publisher = self._publisher(1)
        subscribers = [self._subscriber(publisher) for _ in range(2)]
        self.environment.expect_quiet(
            lambda: any(subscriber.unread for subscriber in subscribers),
            "1.11",
            "no signal before a request",
            lambda: "; ".join(f"{each.name}: {each.seen()}" for each in subscribers),
        )

    @rule("1.11")
    def optional_spec111_registeredSubscribersMustReceiveOnNextOrOnCompleteSignals(self) -> None:
        """Each of two subscribers gets an element or the end.

        Look at whether a second subscriber is kept waiting for ever.
        """
        publisher = self._publisher(1)
        subscribers = [self._subscriber(publisher) for _ in range(2)]
        for subscriber in subscribers:
            subscriber.request(1)
        expected = "an element or on_complete for each of two subscribers"
        for subscriber in subscribers:
            subscriber.wait_until(lambda me: me.received or me.terminal, "1.11", expected)
            if not subscriber.received and subscriber.terminal != ("on_complete",):
                raise RuleBroken("1.11", expected, show(subscriber.terminal))

    @rule("1.11")
    def optional_spec111_multicast_mustProduceTheSameElementsInTheSameSequenceToAllOfItsSubscribersWhenRequestingOneByOne(  # noqa: E501
        self,
    ) -> None:
        """Three subscribers that ask at different rates get the same five elements in order.

        Look at how elements are handed to subscribers that are behind.
        """
        publisher = self._publisher(5, completes=True)
        first, second, third = (self._subscriber(publisher) for _ in range(3))
        steps = [(first, 1), (second, 2), (first, 1), (third, 3), (third, 1), (third, 1)]
        for subscriber, count in [*steps, (second, 3), (first, 2), (first, 1)]:
            subscriber.request(count)
            subscriber.expect_elements(count, "1.11")
        for subscriber in (third, second, first):
            subscriber.expect_end()
        self._expect_equal(first, second, third)

    @rule("1.11")
    def optional_spec111_multicast_mustProduceTheSameElementsInTheSameSequenceToAllOfItsSubscribersWhenRequestingManyUpfront(  # noqa: E501
        self,
    ) -> None:
        """Three subscribers that ask for everything at once get the same elements in order.

        Look at whether elements emitted for the first are kept for the others.
        """
        self._expect_equal(*self._three_at_once(completes=False))

    @rule("1.11")
    def optional_spec111_multicast_mustProduceTheSameElementsInTheSameSequenceToAllOfItsSubscribersWhenRequestingManyUpfrontAndCompleteAsExpected(  # noqa: E501
        self,
    ) -> None:
        """The same, and each of the three is told the end.

        Look at whether on_complete reaches every subscriber.
        """
        subscribers = self._three_at_once(completes=True)
        for subscriber in subscribers:
            subscriber.expect_completion("1.11", "on_complete for each of three subscribers")
        self._expect_equal(*subscribers)

    def _three_at_once(self, *, completes: bool) -> list[ProbeSubscriber]:
        publisher = self._publisher(3, completes=completes)
        subscribers = [self._subscriber(publisher) for _ in range(3)]
        for subscriber in subscribers:
            subscriber.request(4)
        for subscriber in subscribers:
            subscriber.expect_elements(3, "1.11")
        return subscribers

    @staticmethod
    def _expect_equal(first: ProbeSubscriber, *others: ProbeSubscriber) -> None:
        for other in others:
            if len(other.elements) != len(first.elements) or not all(
                map(same, other.elements, first.elements)
            ):
                raise RuleBroken(
                    "1.11",
                    f"the same elements as {first.name}: {show(first.elements)}",
                    f"{other.name} got {show(other.elements)}",
                )

    # -- 3: subscription ---------------------------------------------------------------------------

    @rule("3.2")
    def required_spec302_mustAllowSynchronousRequestCallsFromOnNextAndOnSubscribe(self) -> None:
        """request works from within on_subscribe and on_next.

        Look at locks held while signalling, and at demand that is set before on_subscribe returns.
        """
        elements = 6
        subscriber = self._subscriber(
            self._publisher(elements),
            on_subscribe=lambda me: [me.request(1) for _ in range(3)],
            on_next=lambda me, _element: me.request(1),
        )
        subscriber.wait_until(
            lambda me: me.received >= elements,
            "3.2",
            f"{elements} elements, all asked for from within signals",
        )

    @rule("3.3")
    def required_spec303_mustNotAllowUnboundedRecursion(self) -> None:
        """request within on_next does not call on_next again, deeper than ``bounded_depth``.

        Look at request: while elements are being emitted it must only add demand, and leave.
        """
        self._bounded_recursion(self.bounded_depth + 1)

    def _bounded_recursion(self, elements: int) -> None:
        def react(me: ProbeSubscriber, _element: Any) -> None:
            if me.deepest > self.bounded_depth:
                me.cancel()
            elif me.received < elements:
                me.request(1)

        subscriber = self._subscriber(self._publisher(elements), on_next=react)
        subscriber.request(1)
        subscriber.wait_until(
            lambda me: me.received >= elements or me.deepest > self.bounded_depth,
            "3.3",
            f"{elements} elements, each requested by the one before it",
        )
        if subscriber.deepest > self.bounded_depth:
            raise RuleBroken(
                "3.3",
                f"on_next at most {self.bounded_depth} deep in itself",
                f"{subscriber.deepest} deep at element {subscriber.received}",
            )

    @rule("3.4")
    def untested_spec304_requestShouldNotPerformHeavyComputations(self) -> None:
        """What is heavy is a matter of taste; how long it takes is beyond_optional_spec304."""

    @rule("3.5")
    def untested_spec305_cancelMustNotSynchronouslyPerformHeavyComputation(self) -> None:
        """What is heavy is a matter of taste; how long it takes is beyond_spec305."""

    @rule("3.6")
    def required_spec306_afterSubscriptionIsCancelledRequestMustBeNops(self) -> None:
        """Requests after cancel bring nothing.

        Look at request: it must see that the subscription was cancelled.
        """
        subscriber = self._subscriber(self._publisher(3))
        subscriber.cancel()
        for _ in range(3):
            subscriber.request(1)
        subscriber.expect_silence("3.6", "nothing for requests after cancel")

    @rule("3.7")
    def required_spec307_afterSubscriptionIsCancelledAdditionalCancelationsMustBeNops(self) -> None:
        """Further cancels do nothing.

        Look at cancel: the second call must find nothing left to do.
        """
        subscriber = self._subscriber(self._publisher(1))
        for _ in range(3):
            subscriber.cancel()
        subscriber.expect_silence("3.7", "nothing for three cancels")

    @rule("3.9")
    def required_spec309_requestZeroMustSignalIllegalArgumentException(self) -> None:
        """``request(0)`` is answered by on_error with a ValueError.

        Look at the first lines of request: the error goes to on_error, and is not raised.
        """
        self._invalid_request(0)

    @rule("3.9")
    def required_spec309_requestNegativeNumberMustSignalIllegalArgumentException(self) -> None:
        """A negative request is answered by on_error with a ValueError.

        Look at the first lines of request: the error goes to on_error, and is not raised.
        """
        self._invalid_request(-random.randint(1, _MOST_NEGATIVE))  # noqa: S311

    @rule("3.9")
    def optional_spec309_requestNegativeNumberMaySignalIllegalArgumentExceptionWithSpecificMessage(
        self,
    ) -> None:
        """The error's message names the rule.

        Look at the text of the ValueError.
        """
        error = self._invalid_request(-random.randint(1, _MOST_NEGATIVE))  # noqa: S311
        if not any(words in str(error) for words in _WORDS_OF_309):
            raise RuleBroken("3.9", f"a message with one of {_WORDS_OF_309}", show(str(error)))

    def _invalid_request(self, n: object, types: type[Exception] = ValueError) -> BaseException:
        subscriber = self._subscriber(self._publisher(10))
        subscriber.request(n)
        return subscriber.expect_error(
            "3.9", f"on_error({types.__name__}) for request({show(n)})", types
        )

    @rule("3.12")
    def required_spec312_cancelMustMakeThePublisherToEventuallyStopSignaling(self) -> None:
        """After a cancel in mid-stream the elements stop, well before the demand is used up.

        Look at the loop that emits: it must look at the cancelled state.
        """
        subscriber = self._subscriber(self._publisher(20))
        subscriber.request(10)
        subscriber.request(5)
        subscriber.expect_element("3.12", "the first of the elements requested")
        subscriber.cancel()
        self._expect_settled(subscriber, number="3.12")

    @rule("3.13")
    def required_spec313_cancelMustMakeThePublisherEventuallyDropAllReferencesToTheSubscriber(
        self,
    ) -> None:
        """After cancel, the publisher does not keep the subscriber alive.

        Look at registries, closures, threads' locals and tracebacks that hold the subscriber.
        """
        publisher = self._publisher(3)

        def use() -> weakref.ref[Any]:
            subscriber = self._subscriber(publisher)
            subscriber.request(1)
            subscriber.expect_element("3.13", "an element before cancel")
            subscriber.cancel()
            return weakref.ref(subscriber)

        self._expect_dropped(use, "cancel")

    def _expect_dropped(
        self,
        use: Callable[[], weakref.ref[Any]],
        after: str,
        *,
        timeout: float | None = None,
    ) -> None:
        """Expect that what ``use`` leaves behind is collected, while the publisher lives on."""
        expect_collected(
            self.environment,
            use(),
            "3.13",
            f"the subscriber is let go of after {after}",
            self.reference_timeout if timeout is None else timeout,
        )

    @rule("3.17")
    def required_spec317_mustSupportAPendingElementCountUpToLongMaxValue(self) -> None:
        """``request(2**63 - 1)`` brings every element and the end.

        Look at the type and the arithmetic of the demand.
        """
        self._whole_stream(UNBOUNDED)

    @rule("3.17")
    def required_spec317_mustSupportACumulativePendingElementCountUpToLongMaxValue(self) -> None:
        """Requests that add up to ``2**63 - 1`` bring every element and the end.

        Look at the addition of demand: it must not overflow.
        """
        self._whole_stream(UNBOUNDED // 2, UNBOUNDED // 2, 1)

    def _whole_stream(self, *requests: int) -> None:
        subscriber = self._subscriber(self._publisher(3, completes=True))
        for n in requests:
            subscriber.request(n)
        subscriber.expect_elements(3, "3.17")
        subscriber.expect_completion("3.17", "on_complete after the third and last element")

    @rule("3.17")
    def required_spec317_mustNotSignalOnErrorWhenPendingAboveLongMaxValue(self) -> None:
        """Demand far above ``2**63 - 1`` counts as unbounded and is no error.

        Look at the addition of demand: it must saturate.
        """
        elements, calls = 100, 10

        def react(me: ProbeSubscriber, _element: Any) -> None:
            if me.received <= calls:
                me.request(UNBOUNDED - 1)
            elif me.received == calls + 1:
                me.cancel()

        subscriber = self._subscriber(self._publisher(elements), on_next=react)
        subscriber.request(1)
        subscriber.wait_until(
            lambda me: me.received > calls or me.terminal,
            "3.17",
            f"more than {calls} elements",
        )
        if subscriber.terminal is not None and subscriber.terminal[0] == "on_error":
            raise RuleBroken(
                "3.17", "no on_error for too much demand", show(subscriber.terminal[1])
            )


class _SignalCount:
    """How many signals some subscribers have received, and whether there are more by now."""

    def __init__(self, subscribers: Sequence[ProbeSubscriber]) -> None:
        self._subscribers = subscribers
        self.remember()

    def signals(self) -> int:
        return sum(len(subscriber.signals) for subscriber in self._subscribers)

    def remember(self) -> None:
        self._before = self.signals()

    def has_grown(self) -> bool:
        return self.signals() > self._before
