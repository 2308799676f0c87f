"""Verification of a subscriber that tells the kit what it processes."""

# ruff: noqa: N802

from __future__ import annotations

import functools
import inspect
from typing import Any, ClassVar, Protocol

from rstreams_fast.tck.environment import Environment
from rstreams_fast.tck.history import show
from rstreams_fast.tck.outcome import HookFailed, RuleBroken, raised_by
from rstreams_fast.tck.probes import ProbePublisher, ProbeSubscription, same
from rstreams_fast.tck.subscriber import Answers, Stage, SubscriberTests, TestError
from rstreams_fast.tck.verification import rule

__all__ = ["Puppet", "SubscriberWhiteboxVerification", "WhiteboxProbe"]


class Puppet(Protocol):
    """What the kit moves the subscriber by; ``register_on_subscribe`` hands it over."""

    def trigger_request(self, n: int, /) -> None:
        """Make the subscriber ask for ``n`` elements, at once or one after the other."""

    def signal_cancel(self) -> None:
        """Make the subscriber cancel its subscription."""


class WhiteboxProbe:
    """What the subscriber tells the kit by: each signal, as it is processed. Any thread."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self.puppet: Any = None
        self.elements: list[Any] = []
        self.terminal: tuple[Any, ...] | None = None
        self._read = 0

    def register_on_subscribe(self, puppet: Puppet, /) -> None:
        """The subscriber has accepted a subscription; ``puppet`` moves it from now on."""
        if self.puppet is not None:
            self._environment.flag(
                "2.5", "one subscription is accepted", "register_on_subscribe was called again"
            )
            return
        with self._environment.changed:
            self._environment.history.add("probe", "register_on_subscribe")
            self.puppet = puppet
            self._environment.changed.notify_all()

    def register_on_next(self, element: Any, /) -> None:
        """The subscriber has processed ``element``."""
        with self._environment.changed:
            self._environment.history.add("probe", "register_on_next", element)
            if self.terminal == ("on_complete",):
                self._environment.flag(
                    "2.11",
                    "on_complete is processed after every element",
                    f"on_next({show(element)}) was processed after it",
                )
            self.elements.append(element)
            self._environment.changed.notify_all()

    def register_on_error(self, error: BaseException, /) -> None:
        """The subscriber has processed ``on_error``."""
        self._register_terminal("on_error", error)

    def register_on_complete(self) -> None:
        """The subscriber has processed ``on_complete``."""
        self._register_terminal("on_complete")

    def _register_terminal(self, *signal: Any) -> None:
        with self._environment.changed:
            self._environment.history.add("probe", f"register_{signal[0]}", *signal[1:])
            self.terminal = self.terminal or signal
            self._environment.changed.notify_all()

    def seen(self) -> str:
        unread = self.elements[self._read :]
        texts = [f"on_next({show(element)})" for element in unread[:8]]
        if self.terminal is not None:
            texts.append(self.terminal[0])
        return "the subscriber processed " + (", ".join(texts) or "nothing")

    def expect_next(self, element: Any, number: str) -> None:
        expected = f"the subscriber processes on_next({show(element)})"
        self._environment.wait(lambda: len(self.elements) > self._read, number, expected, self.seen)
        got = self.elements[self._read]
        if not same(got, element):
            raise RuleBroken(number, expected, self.seen())
        self._read += 1

    def expect_none(self, number: str) -> None:
        self._environment.expect_quiet(
            lambda: len(self.elements) > self._read, number, "no further element", self.seen
        )

    def expect_terminal(self, number: str, *signal: Any) -> None:
        expected = f"the subscriber processes {signal[0]}"
        self._environment.wait(lambda: self.terminal, number, expected, self.seen)
        terminal = self.terminal
        if terminal is None or terminal[0] != signal[0] or terminal[1:] != signal[1:]:
            raise RuleBroken(number, expected, self.seen())


class _WhiteboxStage(Stage):
    def __init__(self, publisher: ProbePublisher, probe: WhiteboxProbe) -> None:
        super().__init__(publisher)
        self.probe = probe

    def trigger_request(self, n: int) -> None:
        self._puppet("trigger_request", n)

    def cancel(self) -> None:
        self._puppet("signal_cancel")

    def _puppet(self, name: str, *arguments: Any) -> None:
        environment = self.publisher.environment
        environment.history.add("puppet", name, *arguments)
        if self.probe.puppet is None:
            raise HookFailed("the subscriber did not call probe.register_on_subscribe(puppet)")
        try:
            made = environment.call(getattr(self.probe.puppet, name), *arguments)
        except (Exception, SystemExit) as raised:
            call = f"{name}({', '.join(map(show, arguments))})"
            raise HookFailed(f"the puppet's {call} {raised_by(raised)}") from raised
        if inspect.iscoroutine(made):
            made.close()
            raise HookFailed(
                f"the puppet's {name} is a coroutine function: set asyncio_bound = True"
            )

    def forget(self) -> None:
        self.probe.puppet = None

    def expect_delivered(self, elements: list[Any], number: str) -> None:
        for element in elements:
            self.probe.expect_next(element, number)


class SubscriberWhiteboxVerification(SubscriberTests):
    """Verifies a subscriber: define ``create_whitebox_subscriber(probe)`` in a subclass."""

    essential_hook = "create_whitebox_subscriber"
    hooks: ClassVar[tuple[str, ...]] = (*SubscriberTests.hooks, "create_whitebox_subscriber")

    # -- hooks -------------------------------------------------------------------------------------

    def create_whitebox_subscriber(self, probe: WhiteboxProbe) -> Any:
        """A new subscriber that asks only through its puppet and tells ``probe`` what it does."""
        raise NotImplementedError(
            "create_whitebox_subscriber(probe) is the hook that makes a subscriber"
        )

    # -- for the tests -----------------------------------------------------------------------------

    def _stage(
        self, *, linger: int = 0, subscribed: bool = True, answers: Answers | None = None
    ) -> _WhiteboxStage:
        probe = WhiteboxProbe(self.environment)
        subscriber = self._hook("create_whitebox_subscriber", probe)
        if subscriber is None:
            raise HookFailed("create_whitebox_subscriber returned None")
        subscription = ProbeSubscription(self.environment, linger=linger)
        publisher = ProbePublisher(self.environment, subscriber, subscription)
        if subscribed:
            publisher.send_subscription()
            self.environment.wait(
                lambda: probe.puppet is not None,
                "2.1",
                "the subscriber calls probe.register_on_subscribe(puppet)",
                lambda: "it did not",
            )
        if answers is not None:  # from now on: what is asked before the puppet is, may be dropped
            subscription.answer = functools.partial(answers.send, publisher)
        return _WhiteboxStage(publisher, probe)

    def _send_one(self, stage: _WhiteboxStage, index: int) -> Any:
        element = self._element(index)
        stage.publisher.send_next(element)
        return element

    @rule("2.1")
    def required_exerciseWhiteboxHappyPath(self) -> None:
        """Ask, be sent, process, ask, be sent, process, cancel: the puppet and the probe work.

        Look at the subscriber's calls of the probe, and at its puppet.
        """
        stage = self._stage()
        stage.trigger_request(1)
        stage.trigger_request(1)
        first = stage.subscription.expect_request()
        stage.probe.expect_next(self._send_one(stage, 0), "2.1")
        stage.trigger_request(1)
        if first == 1:
            stage.subscription.expect_request()
        stage.probe.expect_next(self._send_one(stage, 1), "2.1")
        stage.cancel()
        stage.subscription.expect_cancel("2.6", "cancel() when the puppet cancels")

    # -- 2: subscriber -----------------------------------------------------------------------------

    @rule("2.1")
    def required_spec201_mustSignalDemandViaSubscriptionRequest(self) -> None:
        """The puppet's request becomes a request(n) on the subscription.

        Look at puppet.trigger_request.
        """
        stage = self._stage()
        stage.trigger_request(1)
        stage.subscription.expect_request()
        self._send_one(stage, 0)

    @rule("2.2")
    def untested_spec202_shouldAsynchronouslyDispatch(self) -> None:
        """What is slow, and for whom, is not seen from outside."""

    @rule("2.3")
    def required_spec203_mustNotCallMethodsOnSubscriptionOrPublisherInOnComplete(self) -> None:
        """on_complete calls neither request nor cancel.

        Look at on_complete and at what it calls to tidy up.
        """
        self._within_subscribe("on_complete")

    @rule("2.3")
    def required_spec203_mustNotCallMethodsOnSubscriptionOrPublisherInOnError(self) -> None:
        """on_error calls neither request nor cancel.

        Look at on_error and at what it calls to tidy up.
        """
        self._within_subscribe("on_error")

    @rule("2.4")
    def untested_spec204_mustConsiderTheSubscriptionAsCancelledInAfterRecievingOnCompleteOrOnError(
        self,
    ) -> None:
        """What a subscriber considers is not seen; what it does is: see beyond_spec204."""

    @rule("2.5")
    def required_spec205_mustCallSubscriptionCancelIfItAlreadyHasAnSubscriptionAndReceivesAnotherOnSubscribeSignal(  # noqa: E501
        self,
    ) -> None:
        """A second subscription is cancelled, and not accepted.

        Look at on_subscribe: it must look whether it has a subscription before it uses the new one.
        """
        self._second_subscription(self._stage())

    @rule("2.6")
    def untested_spec206_mustCallSubscriptionCancelIfItIsNoLongerValid(self) -> None:
        """What a subscriber wants is not seen; what the puppet makes it want is beyond_spec206."""

    @rule("2.7")
    def untested_spec207_mustEnsureAllCallsOnItsSubscriptionTakePlaceFromTheSameThreadOrTakeCareOfSynchronization(  # noqa: E501
        self,
    ) -> None:
        """The official kit does not look at it; here see beyond_spec207."""

    @rule("2.8")
    def required_spec208_mustBePreparedToReceiveOnNextSignalsAfterHavingCalledSubscriptionCancel(
        self,
    ) -> None:
        """An element that was requested is borne after cancel.

        Look at what cancel clears and on_next then uses.
        """
        stage = self._stage()
        self._asked(stage)
        stage.cancel()
        stage.subscription.expect_cancel("2.6", "cancel() when the puppet cancels")
        self._send_one(stage, 0)
        stage.trigger_request(1)
        stage.trigger_request(1)

    @rule("2.9")
    def required_spec209_mustBePreparedToReceiveAnOnCompleteSignalWithPrecedingRequestCall(
        self,
    ) -> None:
        """on_complete after a request, before any element, is processed.

        Look at on_complete: it must not rely on an element having come.
        """
        self._ends(1, "2.9", "on_complete")

    @rule("2.9")
    def required_spec209_mustBePreparedToReceiveAnOnCompleteSignalWithoutPrecedingRequestCall(
        self,
    ) -> None:
        """on_complete without any request is processed.

        Look at on_complete: it must not rely on a request having been made.
        """
        self._ends(0, "2.9", "on_complete")

    @rule("2.10")
    def required_spec210_mustBePreparedToReceiveAnOnErrorSignalWithPrecedingRequestCall(
        self,
    ) -> None:
        """on_error after two requests, before any element, is processed.

        Look at on_error: it must not rely on an element having come.
        """
        self._ends(2, "2.10", "on_error")

    @rule("2.10")
    def required_spec210_mustBePreparedToReceiveAnOnErrorSignalWithoutPrecedingRequestCall(
        self,
    ) -> None:
        """on_error without any request is processed.

        Look at on_error: it must not rely on a request having been made.
        """
        self._ends(0, "2.10", "on_error")

    def _ends(self, requests: int, number: str, terminal: str) -> None:
        stage = self._stage()
        for _ in range(requests):
            stage.trigger_request(1)
        if terminal == "on_complete":
            stage.publisher.send_complete()
            stage.probe.expect_terminal(number, terminal)
        else:
            error = TestError("from the kit's publisher")
            stage.publisher.send_error(error)
            stage.probe.expect_terminal(number, terminal, error)

    @rule("2.11")
    def untested_spec211_mustMakeSureThatAllCallsOnItsMethodsHappenBeforeTheProcessingOfTheRespectiveEvents(  # noqa: E501
        self,
    ) -> None:
        """The order of memory is not seen; what follows from it is beyond_spec211."""

    @rule("2.12")
    def untested_spec212_mustNotCallOnSubscribeMoreThanOnceBasedOnObjectEquality_specViolation(
        self,
    ) -> None:
        """This binds publishers: in every test of the publisher's kit a second one is a breach."""

    @rule("2.13")
    def untested_spec213_failingOnSignalInvocation(self) -> None:
        """In every test a signal that raises is a breach; see create_failing_subscriber."""

    @rule("2.13")
    def required_spec213_onSubscribe_mustThrowNullPointerExceptionWhenParametersAreNull(
        self,
    ) -> None:
        """``on_subscribe(None)`` raises TypeError, Python's word for it.

        Look at the first line of on_subscribe.
        """
        self._refuses_none(self._stage(), "on_subscribe")

    @rule("2.13")
    def required_spec213_onNext_mustThrowNullPointerExceptionWhenParametersAreNull(self) -> None:
        """``on_next(None)`` raises TypeError, Python's word for it.

        Look at the first line of on_next.
        """
        self._refuses_none(self._stage(), "on_next")

    @rule("2.13")
    def required_spec213_onError_mustThrowNullPointerExceptionWhenParametersAreNull(self) -> None:
        """``on_error(None)`` raises TypeError, Python's word for it.

        Look at the first line of on_error.
        """
        self._refuses_none(self._stage(), "on_error")

    # -- 3: subscription ---------------------------------------------------------------------------

    @rule("3.1")
    def untested_spec301_mustNotBeCalledOutsideSubscriberContext(self) -> None:
        """Who else holds the subscription is not seen from outside."""

    @rule("3.8")
    def required_spec308_requestMustRegisterGivenNumberElementsToBeProduced(self) -> None:
        """A request of two is asked for, at once or one by one, and both elements are processed.

        Look at puppet.trigger_request, and at what happens after the first of several elements.
        """
        stage = self._stage()
        stage.trigger_request(2)
        requested = stage.subscription.expect_request("3.8")
        stage.probe.expect_next(self._send_one(stage, 0), "3.8")
        if requested < 2:  # noqa: PLR2004
            stage.subscription.expect_request("3.8", "a request for the second element")
        stage.probe.expect_next(self._send_one(stage, 1), "3.8")
        stage.probe.expect_none("3.8")
        stage.trigger_request(3)

    @rule("3.10")
    def untested_spec310_requestMaySynchronouslyCallOnNextOnSubscriber(self) -> None:
        """This is a permission for publishers."""

    @rule("3.11")
    def untested_spec311_requestMaySynchronouslyCallOnCompleteOrOnError(self) -> None:
        """This is a permission for publishers."""

    @rule("3.14")
    def untested_spec314_cancelMayCauseThePublisherToShutdownIfNoOtherSubscriptionExists(
        self,
    ) -> None:
        """This is a permission for publishers."""

    @rule("3.15")
    def untested_spec315_cancelMustNotThrowExceptionAndMustSignalOnError(self) -> None:
        """This binds publishers: there, a cancel that raises is a breach in every test."""

    @rule("3.16")
    def untested_spec316_requestMustNotThrowExceptionAndMustOnErrorTheSubscriber(self) -> None:
        """This binds publishers: there, a request that raises is a breach in every test."""
