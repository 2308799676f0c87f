"""Verification of a subscriber that the kit sees from outside only."""

# ruff: noqa: N802

from __future__ import annotations

import functools
from typing import Any, ClassVar

from rstreams_fast.tck.outcome import HookFailed, NotApplicable
from rstreams_fast.tck.probes import ProbePublisher, ProbeSubscription
from rstreams_fast.tck.subscriber import Answers, Stage, SubscriberTests, TestError
from rstreams_fast.tck.verification import rule

__all__ = ["SubscriberBlackboxVerification"]

#: A subscriber that asks for ever is sent so many elements.
_MOST_ELEMENTS = 512


class _BlackboxStage(Stage):
    def __init__(
        self, publisher: ProbePublisher, verification: SubscriberBlackboxVerification
    ) -> None:
        super().__init__(publisher)
        self._verification = verification

    def trigger_request(self, n: int) -> None:  # noqa: ARG002
        self._verification._hook("trigger_request", self.subscriber)

    def needs_cancel(self) -> None:
        if not self._verification._has("trigger_cancel"):
            raise NotApplicable("there is no trigger_cancel")

    def cancel(self) -> None:
        self._verification._hook("trigger_cancel", self.subscriber)


class SubscriberBlackboxVerification(SubscriberTests):
    """Verifies a subscriber: define ``create_subscriber()`` in a subclass.

    The whitebox verification sees more, and is the one to prefer where it is possible.
    """

    essential_hook = "create_subscriber"
    hooks: ClassVar[tuple[str, ...]] = (
        *SubscriberTests.hooks,
        "create_subscriber",
        "trigger_request",
        "trigger_cancel",
    )

    # -- hooks -------------------------------------------------------------------------------------

    def create_subscriber(self) -> Any:
        """A new subscriber that asks for elements by itself, or by ``trigger_request``."""
        raise NotImplementedError("create_subscriber() is the hook that makes a subscriber")

    def trigger_request(self, subscriber: Any) -> None:
        """Make the subscriber ask for (more) elements. By default it does so by itself."""

    def trigger_cancel(self, subscriber: Any) -> None:
        """Make the subscriber stop, and so cancel. Without this hook §2.6 and §2.8 are not seen."""

    # -- for the tests -----------------------------------------------------------------------------

    def _stage(
        self, *, linger: int = 0, subscribed: bool = True, answers: Answers | None = None
    ) -> Stage:
        subscriber = self._hook("create_subscriber")
        if subscriber is None:
            raise HookFailed("create_subscriber returned None")
        subscription = ProbeSubscription(self.environment, linger=linger)
        publisher = ProbePublisher(self.environment, subscriber, subscription)
        if answers is not None:
            subscription.answer = functools.partial(answers.send, publisher)
        if subscribed:
            publisher.send_subscription()
            self.environment.verify()
        return _BlackboxStage(publisher, self)

    # -- 2: subscriber -----------------------------------------------------------------------------

    @rule("2.1")
    def required_spec201_blackbox_mustSignalDemandViaSubscriptionRequest(self) -> None:
        """The subscriber asks, and bears as many elements as it asked for, then the end.

        Look at on_subscribe: something must call request. If that is the user's act, the hook
        trigger_request must perform it.
        """
        stage = self._stage()
        stage.trigger_request(1)
        requested = stage.subscription.expect_request()
        for index in range(min(requested, _MOST_ELEMENTS)):
            if stage.subscription.cancels:
                break
            stage.publisher.send_next(self._element(index))
        stage.publisher.send_complete()

    @rule("2.2")
    def untested_spec202_blackbox_shouldAsynchronouslyDispatch(self) -> None:
        """What is slow, and for whom, is not seen from outside."""

    @rule("2.3")
    def required_spec203_blackbox_mustNotCallMethodsOnSubscriptionOrPublisherInOnComplete(
        self,
    ) -> None:
        """on_complete calls neither request nor cancel.

        Look at on_complete and at what it calls to tidy up.
        """
        self._within_subscribe("on_complete")

    @rule("2.3")
    def required_spec203_blackbox_mustNotCallMethodsOnSubscriptionOrPublisherInOnError(
        self,
    ) -> None:
        """on_error calls neither request nor cancel.

        Look at on_error and at what it calls to tidy up.
        """
        self._within_subscribe("on_error")

    @rule("2.4")
    def untested_spec204_blackbox_mustConsiderTheSubscriptionAsCancelledInAfterRecievingOnCompleteOrOnError(  # noqa: E501
        self,
    ) -> None:
        """What a subscriber considers is not seen; what it does is: see beyond_spec204."""

    @rule("2.5")
    def required_spec205_blackbox_mustCallSubscriptionCancelIfItAlreadyHasAnSubscriptionAndReceivesAnotherOnSubscribeSignal(  # noqa: E501
        self,
    ) -> None:
        """A second subscription is cancelled, and nothing is asked of it.

        Look at on_subscribe: it must look whether it has a subscription before it uses the new one.
        """
        stage = self._stage()
        self._second_subscription(stage)
        stage.publisher.send_complete()

    @rule("2.6")
    def untested_spec206_blackbox_mustCallSubscriptionCancelIfItIsNoLongerValid(self) -> None:
        """What a subscriber wants is not seen; with trigger_cancel see beyond_spec206."""

    @rule("2.7")
    def untested_spec207_blackbox_mustEnsureAllCallsOnItsSubscriptionTakePlaceFromTheSameThreadOrTakeCareOfSynchronization(  # noqa: E501
        self,
    ) -> None:
        """The official kit does not look at it; here see beyond_spec207."""

    @rule("2.8")
    def untested_spec208_blackbox_mustBePreparedToReceiveOnNextSignalsAfterHavingCalledSubscriptionCancel(  # noqa: E501
        self,
    ) -> None:
        """The official kit cannot make it cancel; with trigger_cancel see beyond_spec208."""

    @rule("2.9")
    def required_spec209_blackbox_mustBePreparedToReceiveAnOnCompleteSignalWithPrecedingRequestCall(
        self,
    ) -> None:
        """on_complete after a request, before any element, is borne.

        Look at on_complete: it must not rely on an element having come.
        """
        stage = self._stage()
        self._asked(stage)
        stage.publisher.send_complete()

    @rule("2.9")
    def required_spec209_blackbox_mustBePreparedToReceiveAnOnCompleteSignalWithoutPrecedingRequestCall(  # noqa: E501
        self,
    ) -> None:
        """on_complete without any request is borne.

        Look at on_complete: it must not rely on a request having been made.
        """
        self._stage().publisher.send_complete()

    @rule("2.10")
    def required_spec210_blackbox_mustBePreparedToReceiveAnOnErrorSignalWithPrecedingRequestCall(
        self,
    ) -> None:
        """on_error after a request, before any element, is borne.

        Look at on_error: it must not rely on an element having come, and must not raise.
        """
        stage = self._stage()
        self._asked(stage)
        stage.publisher.send_error(TestError("after a request"))

    @rule("2.10")
    def required_spec210_blackbox_mustBePreparedToReceiveAnOnErrorSignalWithoutPrecedingRequestCall(
        self,
    ) -> None:
        """on_error without any request is borne.

        Look at on_error: it must not rely on a request having been made, and must not raise.
        """
        self._stage().publisher.send_error(TestError("without a request"))

    @rule("2.11")
    def untested_spec211_blackbox_mustMakeSureThatAllCallsOnItsMethodsHappenBeforeTheProcessingOfTheRespectiveEvents(  # noqa: E501
        self,
    ) -> None:
        """Processing is not seen from outside; what can be seen is beyond_spec211."""

    @rule("2.12")
    def untested_spec212_blackbox_mustNotCallOnSubscribeMoreThanOnceBasedOnObjectEquality(
        self,
    ) -> None:
        """This binds publishers: in every test of the publisher's kit a second one is a breach."""

    @rule("2.13")
    def untested_spec213_blackbox_failingOnSignalInvocation(self) -> None:
        """In every test a signal that raises is a breach; see create_failing_subscriber."""

    @rule("2.13")
    def required_spec213_blackbox_onSubscribe_mustThrowNullPointerExceptionWhenParametersAreNull(
        self,
    ) -> None:
        """``on_subscribe(None)`` raises TypeError, Python's word for it.

        Look at the first line of on_subscribe.
        """
        self._refuses_none(self._stage(subscribed=False), "on_subscribe")

    @rule("2.13")
    def required_spec213_blackbox_onNext_mustThrowNullPointerExceptionWhenParametersAreNull(
        self,
    ) -> None:
        """``on_next(None)`` raises TypeError, Python's word for it.

        Look at the first line of on_next.
        """
        self._refuses_none(self._stage(), "on_next")

    @rule("2.13")
    def required_spec213_blackbox_onError_mustThrowNullPointerExceptionWhenParametersAreNull(
        self,
    ) -> None:
        """``on_error(None)`` raises TypeError, Python's word for it.

        Look at the first line of on_error.
        """
        self._refuses_none(self._stage(), "on_error")

    # -- 3: subscription ---------------------------------------------------------------------------

    @rule("3.1")
    def untested_spec301_blackbox_mustNotBeCalledOutsideSubscriberContext(self) -> None:
        """Who else holds the subscription is not seen from outside."""

    @rule("3.8")
    def untested_spec308_blackbox_requestMustRegisterGivenNumberElementsToBeProduced(self) -> None:
        """This binds publishers, and is tested there."""

    @rule("3.10")
    def untested_spec310_blackbox_requestMaySynchronouslyCallOnNextOnSubscriber(self) -> None:
        """This is a permission for publishers."""

    @rule("3.11")
    def untested_spec311_blackbox_requestMaySynchronouslyCallOnCompleteOrOnError(self) -> None:
        """This is a permission for publishers."""

    @rule("3.14")
    def untested_spec314_blackbox_cancelMayCauseThePublisherToShutdownIfNoOtherSubscriptionExists(
        self,
    ) -> None:
        """This is a permission for publishers."""

    @rule("3.15")
    def untested_spec315_blackbox_cancelMustNotThrowExceptionAndMustSignalOnError(self) -> None:
        """This binds publishers: there, a cancel that raises is a breach in every test."""

    @rule("3.16")
    def untested_spec316_blackbox_requestMustNotThrowExceptionAndMustOnErrorTheSubscriber(
        self,
    ) -> None:
        """This binds publishers: there, a request that raises is a breach in every test."""
