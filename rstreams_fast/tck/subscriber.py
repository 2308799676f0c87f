"""Verification of a subscriber: seen from outside (blackbox), and from within (whitebox)."""

# The names of the checks are the official kit's (there those of the blackbox have ``blackbox_`` in
# them), so that tables of both can be joined.
# ruff: noqa: N802

from __future__ import annotations

import copy
import functools
import inspect
import weakref
from typing import Any, ClassVar, Protocol

from rstreams_fast.tck.environment import Environment
from rstreams_fast.tck.history import show
from rstreams_fast.tck.outcome import HookFailed, NotApplicable, RuleBroken, raised_by
from rstreams_fast.tck.probes import ProbeFailed, ProbePublisher, ProbeSubscription, same
from rstreams_fast.tck.references import expect_collected
from rstreams_fast.tck.verification import PYTHON, STRICT, Verification, check

__all__ = [
    "Puppet",
    "SubscriberBlackboxVerification",
    "SubscriberWhiteboxVerification",
    "TestError",
    "WhiteboxProbe",
]

_RACES = 30
_ELEMENTS = 10
#: A subscriber that asks for more is sent so many elements.
_MOST_ELEMENTS = 512


class TestError(Exception):
    """The error that the kit's publishers signal."""

    __test__ = False


class _Stage:
    """A subscriber under test, seen from outside, and the kit's publisher above it."""

    def __init__(self, verification: Any, publisher: ProbePublisher) -> None:
        self.verification = verification
        self.publisher = publisher
        self.subscription = publisher.subscription
        self.subscriber = publisher.subscriber

    def trigger_request(self, n: int) -> None:  # noqa: ARG002
        """Make the subscriber ask for more, if it needs to be made to."""
        self.verification._hook("trigger_request", self.subscriber)

    def needs_cancel(self) -> None:
        """``NotApplicable`` if the kit has no means to make the subscriber cancel."""
        if not self.verification._has("trigger_cancel"):
            raise NotApplicable("there is no trigger_cancel")

    def cancel(self) -> None:
        """Make the subscriber cancel."""
        self.verification._hook("trigger_cancel", self.subscriber)

    def forget(self) -> None:
        """Drop what the kit itself knows of the subscription."""

    def expect_processed(self, elements: list[Any], rule: str) -> None:
        """Expect that the subscriber has processed these, as far as the kit can see that."""

    def expect_terminal(self, rule: str, *signal: Any) -> None:
        """Expect that the subscriber has processed the end, as far as the kit can see that."""

    def end(self, terminal: str, rule: str = "2.13") -> None:
        """Signal ``on_complete`` or ``on_error``."""
        if terminal == "on_complete":
            self.publisher.send_complete()
            self.expect_terminal(rule, terminal)
        else:
            error = TestError("from the kit's publisher")
            self.publisher.send_error(error)
            self.expect_terminal(rule, terminal, error)


class _Answers:
    """Elements that are sent before ``request`` returns (§3.10), and then the end (§3.11).

    A request from within on_next is left to the call that sends already (§3.3).
    """

    def __init__(self, environment: Environment, elements: list[Any]) -> None:
        self.sent = 0
        self.over = False
        self._environment = environment
        self._elements = elements
        self._sending = False

    def send(self, publisher: ProbePublisher) -> None:
        with self._environment.changed:
            if self._sending:
                return
            self._sending = True
        while self._send_one(publisher):
            pass

    def _send_one(self, publisher: ProbePublisher) -> bool:
        subscription = publisher.subscription
        with self._environment.changed:
            index, at_end = self.sent, self.sent == len(self._elements)
            wanted = at_end or subscription.demand > self.sent
            if self.over or subscription.cancels or not wanted:
                self._sending = False
                return False
            self.over = at_end
            self.sent += not at_end
        if at_end:
            publisher.send_complete()
        else:
            publisher.send_next(self._elements[index])
        with self._environment.changed:
            self._environment.changed.notify_all()
        return True


class SubscriberChecks(Verification):
    """What both verifications of subscribers check."""

    hooks: ClassVar[tuple[str, ...]] = ("create_element", "create_failing_subscriber")

    # -- hooks -------------------------------------------------------------------------------------

    def create_element(self, index: int) -> Any:
        """The element that is sent as number ``index``; the number itself by default."""
        return index

    def create_failing_subscriber(self) -> Any:
        """A subscriber whose work fails at its first element (§2.13); or None."""
        return None

    # -- for the checks ----------------------------------------------------------------------------

    def _stage(
        self, *, linger: int = 0, subscribed: bool = True, answers: _Answers | None = None
    ) -> _Stage:
        raise NotImplementedError

    def _element(self, index: int) -> Any:
        return self._make("create_element", index)

    def _asked(self, count: int = 1) -> _Stage:
        """A stage whose subscriber has asked for something."""
        stage = self._stage()
        stage.trigger_request(count)
        stage.subscription.expect_request("2.1", "a request(n) for its first elements")
        return stage

    def _send(self, stage: _Stage, count: int) -> list[Any]:
        """Send so many elements, each only when asked for; stop where the subscriber cancels."""
        sent: list[Any] = []
        while len(sent) < count and self._is_wanted(stage, len(sent)):
            sent.append(self._element(len(sent)))
            stage.publisher.send_next(sent[-1])
        return sent

    def _is_wanted(self, stage: _Stage, sent: int) -> bool:
        """Wait until one more is asked for; False if the subscriber cancels."""
        subscription = stage.subscription
        if not subscription.cancels:
            stage.trigger_request(1)  # for each one: what is asked ahead may be buffered till then
        self.environment.wait(
            lambda: subscription.demand > sent or subscription.cancels,
            "2.1",
            f"a request(n) after {sent} elements",
            subscription.came,
        )
        return not subscription.cancels

    # -- 2: subscriber -----------------------------------------------------------------------------

    @check("2.1", establishes="a request")
    def required_spec201_mustSignalDemandViaSubscriptionRequest(self) -> None:
        """The subscriber asks, and accepts as many elements as it asked for, then the end.
        Look at on_subscribe: something must call request. If that is the user's act, the hook
        trigger_request, or the puppet, must perform it.
        """
        stage = self._stage()
        stage.trigger_request(1)
        requested = stage.subscription.expect_request()
        for index in range(min(requested, _MOST_ELEMENTS)):
            if stage.subscription.cancels:
                break
            stage.publisher.send_next(self._element(index))
        stage.publisher.send_complete()

    @check("2.1", STRICT, needs="a request", establishes="further requests")
    def beyond_spec201_demandShouldGoOnAsLongAsElementsCome(self) -> None:
        """A subscriber that is sent what it asked for goes on asking, or cancels.
        Look at where demand is renewed: after the last element of a portion.
        """
        stage = self._stage()
        sent = self._send(stage, _ELEMENTS)
        stage.expect_processed(sent, "2.1")
        stage.publisher.send_complete()

    @check("2.3")
    def required_spec203_mustNotCallMethodsOnSubscriptionOrPublisherInOnComplete(self) -> None:
        """on_complete calls neither request nor cancel.
        Look at on_complete and at what it calls to clean up.
        """
        self._end_within_subscribe("on_complete", "2.9")

    @check("2.3")
    def required_spec203_mustNotCallMethodsOnSubscriptionOrPublisherInOnError(self) -> None:
        """on_error calls neither request nor cancel.
        Look at on_error and at what it calls to clean up.
        """
        self._end_within_subscribe("on_error", "2.10")

    @check("2.4", STRICT, needs="a request")
    def beyond_spec204_nothingShouldBeRequestedAfterOnComplete(self) -> None:
        """After on_complete the subscription is not asked any more. (§3.6: it would do nothing.)
        Look at request and its callers: on_complete should make them forget the subscription.
        """
        self._expect_no_request_after("on_complete")

    @check("2.4", STRICT, needs="a request")
    def beyond_spec204_nothingShouldBeRequestedAfterOnError(self) -> None:
        """After on_error the subscription is not asked any more. (§3.6: it would do nothing.)
        Look at request and its callers: on_error should make them forget the subscription.
        """
        self._expect_no_request_after("on_error")

    def _expect_no_request_after(self, terminal: str) -> None:
        stage = self._asked()
        stage.end(terminal)
        self.environment.is_quiet(lambda: False)  # calls that were under way are no breach
        before = len(stage.subscription.requests)
        stage.trigger_request(1)
        self.environment.expect_quiet(
            lambda: len(stage.subscription.requests) > before,
            "2.4",
            f"no request after {terminal}",
            lambda: f"request({show(stage.subscription.requests[-1])})",
        )

    @check("2.4", STRICT, needs="a request")
    def beyond_spec204_theSubscriptionShouldBeDroppedAfterTheEnd(self) -> None:
        """After on_complete the subscriber does not keep its subscription alive.
        Look at the attribute that holds the subscription: clear it in on_complete and on_error.
        """

        def use() -> tuple[Any, weakref.ref[Any]]:
            stage = self._asked()
            stage.end("on_complete")
            stage.forget()
            return stage.subscriber, weakref.ref(stage.subscription)

        subscriber, reference = use()
        expected = "no reference to the subscription after on_complete"
        expect_collected(self.environment, reference, "2.4", expected)
        del subscriber

    @check("2.5", establishes="second subscriptions are cancelled")
    def required_spec205_mustCallSubscriptionCancelIfItAlreadyHasAnSubscriptionAndReceivesAnotherOnSubscribeSignal(  # noqa: E501
        self,
    ) -> None:
        """A second subscription is cancelled.
        Look at on_subscribe: it must look whether it has a subscription before it uses the new one.
        """
        stage = self._stage()
        self._second_subscription(stage)
        stage.publisher.send_complete()

    @check("2.5", STRICT, needs="second subscriptions are cancelled, further requests")
    def beyond_spec205_theFirstSubscriptionShouldSurviveASecondOne(self) -> None:
        """A second subscription is asked for nothing, and the first goes on.
        Look at on_subscribe: it should neither ask the new subscription nor replace the old one.
        """
        stage = self._stage()
        second = self._second_subscription(stage)
        if second.requests:
            raise RuleBroken("2.5", "only cancel() of a second subscription", second.came())
        if stage.subscription.cancels:
            raise RuleBroken("2.5", "the second subscription is cancelled", "the first one was")
        self._send(stage, 3)

    def _second_subscription(self, stage: _Stage) -> ProbeSubscription:
        second = ProbeSubscription(self.environment)
        ProbePublisher(self.environment, stage.subscriber, second).send_subscription()
        second.expect_cancel("2.5", "cancel() of a second subscription")
        return second

    @check("2.5", STRICT, needs="second subscriptions are cancelled")
    def beyond_spec205_ofSubscriptionsFromTwoThreadsOneShouldBeCancelled(self) -> None:
        """Two threads call on_subscribe at once: one subscription is kept, the other cancelled.
        Look at on_subscribe: its look at the subscription it has and its keeping of the new one
        should be one step.
        """
        self._needs_threads()
        for _ in range(_RACES):
            subscriber = self._stage(subscribed=False).subscriber
            subscriptions = [ProbeSubscription(self.environment) for _ in range(2)]
            publishers = [
                ProbePublisher(self.environment, subscriber, each) for each in subscriptions
            ]
            self.environment.run_together(
                *(publisher.send_subscription for publisher in publishers), rule="2.5"
            )
            self._expect_one_kept(subscriptions, publishers)

    def _expect_one_kept(
        self, subscriptions: list[ProbeSubscription], publishers: list[ProbePublisher]
    ) -> None:
        def cancelled() -> int:
            return sum(subscription.cancels > 0 for subscription in subscriptions)

        self.environment.wait(
            cancelled, "2.5", "one of two subscriptions is cancelled", lambda: "none was cancelled"
        )
        if cancelled() > 1:
            raise RuleBroken("2.5", "one of two subscriptions is kept", "both were cancelled")
        kept = next(i for i, each in enumerate(subscriptions) if not each.cancels)
        publishers[kept].send_complete()

    @check("2.6", needs="a request", establishes="cancel on demand")
    def beyond_spec206_stoppingMustCancelTheSubscription(self) -> None:
        """A subscriber that is made to stop cancels its subscription.
        Look at every way in which the subscriber may stop early.
        """
        self._cancelled(1)

    def _cancelled(self, requests: int) -> _Stage:
        """A stage whose subscriber has asked, and then cancelled."""
        self._stage(subscribed=False).needs_cancel()
        stage = self._asked(requests)
        stage.cancel()
        stage.subscription.expect_cancel("2.6", "cancel() of a subscription no longer wanted")
        return stage

    @check("2.7", needs="further requests")
    def beyond_spec207_callsOnTheSubscriptionMustNotOverlap(self) -> None:
        """Threads of the subscriber do not call request and cancel at once.
        Look at which threads request: on_next and another thread of the subscriber need one lock,
        or one thread that makes all calls.
        """
        self._needs_threads()
        stage = self._stage(linger=3)
        self._send(stage, 5)
        stage.publisher.send_complete()

    @check("2.8", needs="cancel on demand")
    def required_spec208_mustBePreparedToReceiveOnNextSignalsAfterHavingCalledSubscriptionCancel(
        self,
    ) -> None:
        """Elements that were requested, and the end, are accepted after cancel.
        Look at what cancel clears and on_next then uses.
        """
        stage = self._cancelled(3)
        for index in range(min(2, stage.subscription.demand)):
            stage.publisher.send_next(self._element(index))
        stage.trigger_request(1)
        stage.publisher.send_complete()

    @check("2.8", STRICT, needs="cancel on demand")
    def beyond_spec208_signalsRacingWithCancelShouldBeAccepted(self) -> None:
        """Elements and the end come from one thread while another makes the subscriber cancel.
        Look at attributes that cancel clears between two uses in on_next.
        """
        self._needs_threads()
        self._stage(subscribed=False).needs_cancel()
        for _ in range(_RACES):
            stage = self._asked(3)

            def signal(stage: _Stage = stage) -> None:
                for index in range(min(3, stage.subscription.demand)):
                    stage.publisher.send_next(self._element(index))
                stage.publisher.send_complete()

            self.environment.run_together(signal, stage.cancel, rule="2.8")

    @check("2.9", needs="a request")
    def required_spec209_mustBePreparedToReceiveAnOnCompleteSignalWithPrecedingRequestCall(
        self,
    ) -> None:
        """on_complete after a request, before any element, is accepted.
        Look at on_complete: it must not rely on an element having come.
        """
        self._asked().end("on_complete", "2.9")

    @check("2.9")
    def required_spec209_mustBePreparedToReceiveAnOnCompleteSignalWithoutPrecedingRequestCall(
        self,
    ) -> None:
        """on_complete without any request, right after on_subscribe, is accepted.
        Look at on_complete: it must not rely on a request having been made.
        """
        self._stage().end("on_complete", "2.9")
        self._end_within_subscribe("on_complete", "2.9")

    @check("2.10", needs="a request")
    def required_spec210_mustBePreparedToReceiveAnOnErrorSignalWithPrecedingRequestCall(
        self,
    ) -> None:
        """on_error after a request, before any element, is accepted.
        Look at on_error: it must not rely on an element having come, and must not raise.
        """
        self._asked(2).end("on_error", "2.10")

    @check("2.10")
    def required_spec210_mustBePreparedToReceiveAnOnErrorSignalWithoutPrecedingRequestCall(
        self,
    ) -> None:
        """on_error without any request, right after on_subscribe, is accepted.
        Look at on_error: it must not rely on a request having been made, and must not raise.
        """
        self._stage().end("on_error", "2.10")
        self._end_within_subscribe("on_error", "2.10")

    @check("2.10", needs="further requests")
    def beyond_spec210_onErrorMustBeAcceptedAfterElements(self) -> None:
        """on_error may come after some elements, with others asked for.
        Look at what on_error does with what was received: it neither raises nor calls cancel.
        """
        stage = self._stage()
        stage.expect_processed(self._send(stage, 3), "2.11")
        stage.end("on_error", "2.10")

    def _end_within_subscribe(self, terminal: str, rule: str) -> None:
        stage = self._stage(subscribed=False)
        stage.publisher.send_subscription()
        stage.end(terminal, rule)

    @check("2.11", needs="further requests")
    def beyond_spec211_signalsFromFreeRunningThreadsMustBeSeenInOrder(self) -> None:
        """Each signal comes from a new thread, one after the other; all are taken, in order.
        Look at thread-locals, at loops taken from the calling thread, at hand-over without a lock.
        """
        self._needs_threads()
        stage = self._stage()
        sent: list[Any] = []
        while len(sent) < _ELEMENTS:
            if not self._is_wanted(stage, len(sent)):
                return
            sent.append(self._element(len(sent)))
            self._call_from_a_new_thread(lambda: stage.publisher.send_next(sent[-1]), "2.11")
        self._call_from_a_new_thread(stage.publisher.send_complete, "2.11")
        stage.expect_processed(sent, "2.11")

    @check("2.13")
    def required_spec213_onSubscribe_mustThrowNullPointerExceptionWhenParametersAreNull(
        self,
    ) -> None:
        """``on_subscribe(None)`` raises, whatever the type.
        Look at the first line of on_subscribe.
        """
        self._expect_refusal("on_subscribe", BaseException)

    @check("2.13")
    def required_spec213_onNext_mustThrowNullPointerExceptionWhenParametersAreNull(self) -> None:
        """``on_next(None)`` raises, whatever the type.
        Look at the first line of on_next.
        """
        self._expect_refusal("on_next", BaseException)

    @check("2.13")
    def required_spec213_onError_mustThrowNullPointerExceptionWhenParametersAreNull(self) -> None:
        """``on_error(None)`` raises, whatever the type.
        Look at the first line of on_error.
        """
        self._expect_refusal("on_error", BaseException)

    @check("2.13", PYTHON)
    def beyond_spec213_whatIsRaisedForNoneShouldBeATypeError(self) -> None:
        """on_subscribe, on_next and on_error of None raise TypeError, not another exception.
        Look at the first lines of these methods.
        """
        for signal in ("on_subscribe", "on_next", "on_error"):
            self._expect_refusal(signal, TypeError)

    def _expect_refusal(self, signal: str, error: type[BaseException]) -> None:
        """Expect that ``signal(None)`` raises such an error."""
        stage = self._stage(subscribed=signal != "on_subscribe")
        expected = f"{signal}(None) raises"
        expected += "" if error is BaseException else f" {error.__name__}"
        self.environment.history.do("subscriber", signal, None)
        try:
            self.environment.call(getattr(stage.subscriber, signal), None)
        except error:
            return
        except Exception as raised:
            raise RuleBroken("2.13", expected, f"it raised {raised!r}") from raised
        raise RuleBroken("2.13", expected, "it returned")

    @check("2.13", needs="a request")
    def beyond_spec213_elementsFromWithinRequestMustBeAccepted(self) -> None:
        """A publisher may call on_next, and at last on_complete, before request returns (§3.10).
        Look at locks held while request is called, and at what is set up only after it: the
        subscription must be kept before it is asked.
        """
        sent = [self._element(index) for index in range(_ELEMENTS)]
        answers = _Answers(self.environment, sent)
        stage = self._stage(answers=answers)
        subscription = stage.subscription
        stage.trigger_request(_ELEMENTS)
        while not (answers.over or subscription.cancels):
            before = answers.sent
            answers.send(stage.publisher)  # what was asked for too early to be answered within
            if answers.sent == before and not self._goes_on(stage, answers):
                break
        stage.expect_processed(sent[: answers.sent], "2.11")

    def _goes_on(self, stage: _Stage, answers: _Answers) -> bool:
        """Whether the subscriber asks for more, which is its own choice."""
        before = answers.sent
        stage.trigger_request(1)
        return not self.environment.is_quiet(
            lambda: (
                answers.over
                or stage.subscription.cancels
                or answers.sent > before
                or stage.subscription.demand > answers.sent
            )
        )

    @check("2.13", STRICT, needs="further requests")
    def beyond_spec213_elementsWithHostileEqualityShouldBeAccepted(self) -> None:
        """Elements whose ==, hash and bool raise are taken without raising.
        Look at ``if element:``, ``element == ...`` and ``element in ...``; use ``is``.
        """
        stage = self._stage()
        for index in range(3):
            if not self._is_wanted(stage, index):
                return
            stage.publisher.send_next(_hostile(self._element(index)))
        stage.publisher.send_complete()

    @check("2.13")
    def beyond_spec213_aFailureOfItsOwnMustCancelAndNotRaise(self) -> None:
        """A subscriber whose work fails returns normally from on_next and cancels.
        Look at what runs the user's code in on_next: its exception must become a cancel.
        """
        subscriber = self._make_if_there("create_failing_subscriber")
        subscription = ProbeSubscription(self.environment)
        publisher = ProbePublisher(self.environment, subscriber, subscription)
        publisher.send_subscription()
        subscription.expect_request("2.1", "a request(n) for the element that will fail")
        publisher.send_next(self._element(0))
        subscription.expect_cancel("2.13", "cancel() after the failure")


#: Types whose values are copied by calling the type.
_PLAIN = (int, float, complex, str, bytes, bytearray, tuple, list, dict, set, frozenset)


def _hostile(element: Any) -> Any:
    """The same as ``element``, and of its type, but ==, hash and bool raise.

    A subscriber may rely on the type and the contents of its elements: where no such copy can be
    made, there is nothing to send it.
    """

    def fail(*_arguments: Any) -> Any:
        raise ProbeFailed("an element's own method")

    methods = {"__eq__": fail, "__hash__": fail, "__bool__": fail, "__ne__": fail}
    kind = type(element)
    try:
        if kind in _PLAIN:
            return type("Hostile", (kind,), methods)(element)
        hostile = type("Hostile", (kind,), {**methods, "__slots__": ()})
        made = copy.copy(element)
        object.__setattr__(made, "__class__", hostile)  # also of what is frozen
    except Exception as raised:
        raise NotApplicable(f"no {kind.__name__} can be made whose == raises: {raised}") from raised
    return made


# -- seen from outside -----------------------------------------------------------------------------


class SubscriberBlackboxVerification(SubscriberChecks):
    """Verifies a subscriber: define ``create_subscriber()`` in a subclass.

    The whitebox verification sees more, and is the one to prefer where it is possible.
    """

    essential_hook = "create_subscriber"
    hooks: ClassVar[tuple[str, ...]] = (
        *SubscriberChecks.hooks,
        "create_subscriber",
        "trigger_request",
        "trigger_cancel",
    )

    def create_subscriber(self) -> Any:
        """A new subscriber that asks for elements by itself, or by ``trigger_request``."""
        raise NotImplementedError("create_subscriber() is the hook that makes a subscriber")

    def trigger_request(self, subscriber: Any) -> None:
        """Make the subscriber ask for (more) elements. By default it does so by itself."""

    def trigger_cancel(self, subscriber: Any) -> None:
        """Make the subscriber stop, and so cancel. Without this hook §2.6 and §2.8 are not seen."""

    def _stage(
        self, *, linger: int = 0, subscribed: bool = True, answers: _Answers | None = None
    ) -> _Stage:
        subscriber = self._make("create_subscriber")
        subscription = ProbeSubscription(self.environment, linger=linger)
        publisher = ProbePublisher(self.environment, subscriber, subscription)
        if answers is not None:
            subscription.answer = functools.partial(answers.send, publisher)
        if subscribed:
            publisher.send_subscription()
            self.environment.verify()
        return _Stage(self, publisher)


# -- seen from within ------------------------------------------------------------------------------


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
            self._environment.history.add("probe.register_on_subscribe()")
            self.puppet = puppet
            self._environment.changed.notify_all()

    def register_on_next(self, element: Any, /) -> None:
        """The subscriber has processed ``element``."""
        with self._environment.changed:
            self._environment.history.add(f"probe.register_on_next({show(element)})")
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
            self._environment.history.add(f"probe.register_{signal[0]}()")
            self.terminal = self.terminal or signal
            self._environment.changed.notify_all()

    def came(self) -> str:
        unread = self.elements[self._read :]
        texts = [f"on_next({show(element)})" for element in unread[:8]]
        if self.terminal is not None:
            texts.append(self.terminal[0])
        return "the subscriber processed " + (", ".join(texts) or "nothing")

    def expect_next(self, element: Any, rule: str) -> None:
        expected = f"the subscriber processes on_next({show(element)})"
        self._environment.wait(lambda: len(self.elements) > self._read, rule, expected, self.came)
        if not same(self.elements[self._read], element):
            raise RuleBroken(rule, expected, self.came())
        self._read += 1

    def expect_none(self, rule: str) -> None:
        self._environment.expect_quiet(
            lambda: len(self.elements) > self._read, rule, "no further element", self.came
        )

    def expect_terminal(self, rule: str, *signal: Any) -> None:
        expected = f"the subscriber processes {signal[0]}"
        self._environment.wait(lambda: self.terminal, rule, expected, self.came)
        if self.terminal != signal:
            raise RuleBroken(rule, expected, self.came())


class _WhiteboxStage(_Stage):
    def __init__(self, verification: Any, publisher: ProbePublisher, probe: WhiteboxProbe) -> None:
        super().__init__(verification, publisher)
        self.probe = probe

    def trigger_request(self, n: int) -> None:
        self._move("trigger_request", n)

    def needs_cancel(self) -> None:
        """The puppet cancels."""

    def cancel(self) -> None:
        self._move("signal_cancel")

    def _move(self, name: str, *arguments: Any) -> None:
        environment = self.publisher.environment
        environment.history.do("puppet", name, *arguments)
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

    def expect_processed(self, elements: list[Any], rule: str) -> None:
        for element in elements:
            self.probe.expect_next(element, rule)

    def expect_terminal(self, rule: str, *signal: Any) -> None:
        self.probe.expect_terminal(rule, *signal)


class SubscriberWhiteboxVerification(SubscriberChecks):
    """Verifies a subscriber: define ``create_whitebox_subscriber(probe)`` in a subclass."""

    essential_hook = "create_whitebox_subscriber"
    hooks: ClassVar[tuple[str, ...]] = (*SubscriberChecks.hooks, "create_whitebox_subscriber")

    def create_whitebox_subscriber(self, probe: WhiteboxProbe) -> Any:
        """A new subscriber that asks only through its puppet and tells ``probe`` what it does."""
        raise NotImplementedError(
            "create_whitebox_subscriber(probe) is the hook that makes a subscriber"
        )

    def _stage(
        self, *, linger: int = 0, subscribed: bool = True, answers: _Answers | None = None
    ) -> _WhiteboxStage:
        probe = WhiteboxProbe(self.environment)
        subscriber = self._make("create_whitebox_subscriber", probe)
        subscription = ProbeSubscription(self.environment, linger=linger)
        publisher = ProbePublisher(self.environment, subscriber, subscription)
        if subscribed:
            publisher.send_subscription()
            self.environment.wait(
                lambda: probe.puppet is not None,
                "2.1",
                "the subscriber calls probe.register_on_subscribe(puppet)",
                lambda: "no such call",
            )
        if answers is not None:  # from now on: what is asked before the puppet is, may be dropped
            subscription.answer = functools.partial(answers.send, publisher)
        return _WhiteboxStage(self, publisher, probe)

    @check("2.1", needs="a request")
    def required_exerciseWhiteboxHappyPath(self) -> None:
        """Ask, be sent, process, ask, be sent, process: the puppet and the probe work.
        Look at the subscriber's calls of the probe, and at its puppet.
        """
        stage = self._stage()
        stage.trigger_request(1)
        stage.trigger_request(1)
        first = stage.subscription.expect_request()
        self._process_one(stage, 0, "2.1")
        stage.trigger_request(1)
        if first == 1:
            stage.subscription.expect_request()
        self._process_one(stage, 1, "2.1")

    @check("3.8", needs="a request")
    def required_spec308_requestMustRegisterGivenNumberElementsToBeProduced(self) -> None:
        """A request of two is asked for, at once or one by one, and both elements are processed.
        Look at puppet.trigger_request, and at what happens after the first of several elements.
        """
        stage = self._stage()
        stage.trigger_request(2)
        requested = stage.subscription.expect_request("3.8")
        self._process_one(stage, 0, "3.8")
        if requested == 1:
            stage.subscription.expect_request("3.8", "a request for the second element")
        self._process_one(stage, 1, "3.8")
        stage.probe.expect_none("3.8")
        stage.trigger_request(3)

    def _process_one(self, stage: _WhiteboxStage, index: int, rule: str) -> None:
        element = self._element(index)
        stage.publisher.send_next(element)
        stage.probe.expect_next(element, rule)
