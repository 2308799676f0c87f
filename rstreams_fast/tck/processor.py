"""Verification of an identity processor, which passes elements on unchanged (§4.1)."""

# ruff: noqa: N802

from __future__ import annotations

from typing import Any, ClassVar

from rstreams_fast.tck.history import show
from rstreams_fast.tck.outcome import RuleBroken
from rstreams_fast.tck.probes import ProbeSubscriber, is_same
from rstreams_fast.tck.publisher import PublisherVerification
from rstreams_fast.tck.subscriber import SubscriberWhiteboxVerification, WhiteboxProbe
from rstreams_fast.tck.upstream import CorrectSource, TestError, Upstream
from rstreams_fast.tck.verification import STRICT, check

__all__ = ["Downstream", "IdentityProcessorVerification"]

#: The first of two subscribers requests this many elements before the second subscriber comes.
_REQUESTED_LONG_AGO = 20


class _ProcessorUpstream(Upstream):
    """The kit's publisher above a processor under test."""

    def __init__(self, verification: IdentityProcessorVerification) -> None:
        super().__init__(verification.environment, verification._processor())
        self._verification = verification
        self._sent = 0
        self.send_subscription()
        self.environment.verify()

    def downstream(self, request: int = 0) -> ProbeSubscriber:
        """Return a new subscriber of the processor that has requested ``request`` elements.

        If ``request`` is not 0, first wait until the processor has requested elements upstream.
        """
        subscriber = self._verification._subscriber(self.subscriber)
        if request:
            subscriber.request(request)
            self.expect_demand()
        return subscriber

    def send_next_element(self) -> Any:
        """Send the next element to the processor, and return the element."""
        element = self._verification._element(self._sent)
        self._sent += 1
        self.send_next(element)
        return element

    def fail(self, where: str) -> BaseException:
        error = TestError(where)
        self.send("on_error", error)
        return error

    def expect_demand(self) -> None:
        """Wait until the processor has requested more elements than it has got."""
        self.environment.wait(
            lambda: self.demand > self._sent,
            "2.1",
            f"a request upstream for element {self._sent + 1}, which downstream waits for"
            + self._verification._coordination_hint(),
            self.came,
        )


class IdentityProcessorVerification(PublisherVerification, SubscriberWhiteboxVerification):
    """Verifies a processor: define ``create_identity_processor(buffer_size)`` in a subclass.

    It runs the checks of publishers, the checks of subscribers, and further checks of processors.
    """

    buffer_size: int = 16
    """How many elements the processor must be able to buffer."""
    coordinated_emission: bool = False
    """Whether the processor emits an element only when *all* its subscribers have requested it."""

    essential_hook = "create_identity_processor"
    hooks: ClassVar[tuple[str, ...]] = (
        "create_identity_processor",
        "create_element",
        "create_failed_publisher",
        "create_failing_subscriber",
    )
    settings: ClassVar[tuple[str, ...]] = (
        *PublisherVerification.settings,
        "delivers_at_end",
        "buffer_size",
        "coordinated_emission",
    )
    #: No rule demands that a processor cancels upstream when its last subscriber cancels. The check
    #: named here is run only for a processor that does so.
    more_needs: ClassVar[dict[str, tuple[str, ...]]] = {
        "beyond_spec206_stoppingMustCancelTheSubscription": ("cancel upstream",)
    }

    # -- hooks -------------------------------------------------------------------------------------

    def create_identity_processor(self, buffer_size: int) -> Any:
        """Return a new processor that passes elements on unchanged.

        Args:
            buffer_size: The number of elements that the processor can buffer.
        """
        raise NotImplementedError(
            "create_identity_processor(buffer_size) is the hook that makes a processor"
        )

    def create_publisher(self, elements: int) -> Any:
        """Return a new processor, subscribed to a correct publisher of ``elements`` elements."""
        return self._processor_below(CorrectSource(self.create_element, elements))

    def create_failing_publisher(self, elements: int) -> Any:
        """Return a new processor, subscribed to a publisher that fails after some elements.

        Args:
            elements: The number of elements before the error.
        """
        failure = TestError("after some elements")
        return self._processor_below(CorrectSource(self.create_element, elements, failure))

    def create_whitebox_subscriber(self, probe: WhiteboxProbe) -> Any:
        """Return a new processor whose subscriber reports the processor's signals to ``probe``."""
        processor = self._processor()
        self.environment.call(processor.subscribe, Downstream(probe))
        return processor

    # -- helpers of the checks ---------------------------------------------------------------------

    def _processor(self) -> Any:
        return self._make("create_identity_processor", self.buffer_size)

    def _processor_below(self, source: CorrectSource) -> Any:
        processor = self._processor()
        self.environment.call(source.subscribe, processor)
        return processor

    def _coordination_hint(self) -> str:
        if self.coordinated_emission:
            return ""
        return " (if it emits only when all its subscribers have asked, set coordinated_emission)"

    def _expect_same(self, subscriber: ProbeSubscriber, sent: Any, rule: str) -> None:
        expected = f"on_next({show(sent)}) at {subscriber.name}" + self._coordination_hint()
        got = subscriber.expect_element(rule, expected)
        if not is_same(got, sent):
            raise RuleBroken(rule, expected, f"on_next({show(got)})")

    # -- checks of processors (§4) -----------------------------------------------------------------

    @check("1.4")
    def required_spec104_mustCallOnErrorOnAllItsSubscribersIfItEncountersANonRecoverableError(
        self,
    ) -> None:
        """An error from upstream reaches each of two subscribers, with or without demand.
        Look at on_error of the processor: it must signal the error to all subscribers."""
        self._needs_subscribers(2)
        upstream = _ProcessorUpstream(self)
        first, second = upstream.downstream(), upstream.downstream()
        asking = [first, second] if self.coordinated_emission else [first]
        for subscriber in asking:
            subscriber.request(1)
        upstream.expect_demand()
        sent = upstream.send_next_element()
        for subscriber in asking:
            self._expect_same(subscriber, sent, "1.4")
            subscriber.request(1)
        error = upstream.fail("from upstream")
        for subscriber in (first, second):
            self._expect_same_error(subscriber, error, "1.4")

    @staticmethod
    def _expect_same_error(subscriber: ProbeSubscriber, error: BaseException, rule: str) -> None:
        expected = f"on_error({show(error)}) at {subscriber.name}"
        got = subscriber.expect_error(rule, expected)
        if got is not error:
            raise RuleBroken(rule, expected, f"on_error({show(got)})")

    @check("4.2", establishes="errors passed on")
    def mustImmediatelyPassOnOnErrorEventsReceivedFromItsUpstreamToItsDownstream(self) -> None:
        """An error from upstream goes downstream immediately, without a request.
        Look at on_error of the processor: it must not wait for demand."""
        upstream = _ProcessorUpstream(self)
        subscriber = upstream.downstream()
        error = upstream.fail("from upstream")
        self._expect_same_error(subscriber, error, "4.2")

    @check("2.1", needs="elements passed on")
    def required_mustRequestFromUpstreamForElementsThatHaveBeenRequestedLongAgo(self) -> None:
        """One subscriber requests many elements. When a second subscriber has come, the processor
        still requests those elements upstream.
        Look at how the demands of several subscribers become one demand upstream."""
        self._needs_subscribers(2)
        upstream = _ProcessorUpstream(self)
        first = upstream.downstream()
        first.request(_REQUESTED_LONG_AGO)
        for _ in range(2):
            upstream.expect_demand()
            self._expect_same(first, upstream.send_next_element(), "2.1")
        upstream.expect_demand()
        second = upstream.downstream()
        if self.coordinated_emission:
            second.expect_silence("1.1", "nothing before its request")
            second.request(1)
            sent = upstream.send_next_element()
            self._expect_same(first, sent, "2.1")
        else:
            sent = upstream.send_next_element()
            self._expect_same(first, sent, "2.1")
            second.expect_silence("1.1", "nothing before its request")
            second.request(1)
        self._expect_same(second, sent, "2.1")
        upstream.expect_demand()
        upstream.send("on_complete")
        for subscriber in (first, second):
            subscriber.expect_completion("1.5", "on_complete after that of upstream")

    @check("4.1", establishes="elements passed on")
    def beyond_spec401_everyElementMustPassInOrder(self) -> None:
        """Three times ``buffer_size`` elements pass through, each once and in order.
        Look at the buffer: where its index wraps, and where it is full or empty."""
        upstream = _ProcessorUpstream(self)
        subscriber = upstream.downstream()
        total = 3 * self.buffer_size
        subscriber.request(total)
        for _ in range(total):
            upstream.expect_demand()
            self._expect_same(subscriber, upstream.send_next_element(), "4.1")
        upstream.send("on_complete")
        subscriber.expect_end()

    @check("4.1", needs="elements passed on")
    def beyond_spec401_whatIsBufferedMustPassBeforeTheEnd(self) -> None:
        """Buffered elements are delivered before on_complete, even if they are requested late.
        Look at on_complete of the processor: it must wait until the buffer is empty."""
        upstream = _ProcessorUpstream(self)
        subscriber = upstream.downstream(1)
        asked = min(upstream.demand, self.buffer_size)
        sent = [upstream.send_next_element() for _ in range(asked)]
        upstream.send("on_complete")
        self._expect_same(subscriber, sent[0], "4.1")
        for element in sent[1:]:
            subscriber.request(1)
            self._expect_same(subscriber, element, "4.1")
        subscriber.expect_end()

    @check("4.1", needs="elements passed on, errors passed on")
    def beyond_spec401_failureInMidStreamMustPass(self) -> None:
        """An error after some elements goes downstream, and nothing follows it.
        Look at on_error of the processor, and what it does with buffered elements."""
        upstream = _ProcessorUpstream(self)
        subscriber = upstream.downstream(3)
        self._expect_same(subscriber, upstream.send_next_element(), "4.1")
        error = upstream.fail("in mid-stream")
        self._expect_same_error(subscriber, error, "4.2")
        subscriber.request(3)
        subscriber.expect_silence("1.7", "nothing after on_error")

    @check("4.1", needs="elements passed on")
    def beyond_spec401_cancelOfOneSubscriberMustNotCancelUpstream(self) -> None:
        """When one of two subscribers cancels, the processor does not cancel upstream.
        Look at cancel of the processor's subscriptions: only the last cancel may go upstream."""
        self._needs_subscribers(2)
        upstream = _ProcessorUpstream(self)
        first, second = upstream.downstream(), upstream.downstream()
        second.cancel()
        first.request(1)
        upstream.expect_demand()
        self._expect_same(first, upstream.send_next_element(), "4.1")
        if upstream.cancels:
            raise RuleBroken("4.1", "no cancel() upstream while there is a subscriber", "cancel()")

    @check("4.1", STRICT, establishes="cancel upstream")
    def beyond_spec401_cancelOfTheLastSubscriberShouldCancelUpstream(self) -> None:
        """When its only subscriber cancels, the processor cancels upstream.
        Look at cancel of the processor's subscriptions. (A processor need not cancel upstream.)"""
        upstream = _ProcessorUpstream(self)
        subscriber = upstream.downstream(1)
        subscriber.cancel()
        upstream.expect_cancel("4.1", "cancel() upstream after the last cancel downstream")

    # The processor has requested elements upstream for the subscriber that cancels. No rule says
    # that it must request as many elements again for a later subscriber. So the grade of this check
    # is ``strict`` for a processor, but ``spec`` for a publisher.
    @check("1.11", STRICT, needs="elements on request")
    def beyond_spec111_aLaterSubscriberMustBeServed(self) -> None:
        """After one subscriber has cancelled with demand left, the next one gets what it requests.
        Look at requests upstream for a subscriber that has cancelled. If the processor drops the
        elements that it requested for this subscriber, it should request as many again."""
        self._expect_later_subscriber_served()

    @check("4.1", STRICT, needs="elements passed on")
    def beyond_spec401_demandUpstreamShouldStayWithinTheBuffer(self) -> None:
        """The processor requests at most ``buffer_size`` more elements than its subscriber did.
        Look at requests upstream: elements that no subscriber has requested must fit in the buffer.
        """
        upstream = _ProcessorUpstream(self)
        upstream.downstream(1)
        bound = 1 + self.buffer_size
        self.environment.expect_quiet(
            lambda: upstream.demand > bound,
            "4.1",
            f"at most {bound} elements asked for upstream",
            lambda: f"{upstream.demand}",
        )


class Downstream:
    """A subscriber of a processor under test. It reports its signals to the probe."""

    def __init__(self, probe: WhiteboxProbe) -> None:
        self._probe = probe
        self._has_subscription = False

    def on_subscribe(self, subscription: Any, /) -> None:
        if self._has_subscription:
            subscription.cancel()
            return
        self._has_subscription = True
        self._probe.register_on_subscribe(_SubscriptionPuppet(subscription))

    def on_next(self, element: Any, /) -> None:
        self._probe.register_on_next(element)

    def on_error(self, error: BaseException, /) -> None:
        self._probe.register_on_error(error)

    def on_complete(self) -> None:
        self._probe.register_on_complete()


class _SubscriptionPuppet:
    def __init__(self, subscription: Any) -> None:
        self._subscription = subscription

    def trigger_request(self, n: int, /) -> None:
        self._subscription.request(n)

    def signal_cancel(self) -> None:
        self._subscription.cancel()
