"""The subscriber's side: what both verifications of subscribers share."""

# ruff: noqa: N802

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from typing import Any, ClassVar

from rstreams_fast.tck.environment import Environment
from rstreams_fast.tck.history import show
from rstreams_fast.tck.outcome import HookFailed, NotApplicable, RuleBroken
from rstreams_fast.tck.probes import ProbePublisher, ProbeSubscription
from rstreams_fast.tck.references import expect_collected
from rstreams_fast.tck.verification import Verification, rule

__all__ = ["Answers", "Stage", "SubscriberTests"]

_RACES = 30
_ELEMENTS = 10
_THREADS = 4


class TestError(Exception):
    """The error that the kit's publishers signal."""

    __test__ = False


class Stage:
    """A subscriber under test and the publisher that plays to it."""

    def __init__(self, publisher: ProbePublisher) -> None:
        self.publisher = publisher
        self.subscription = publisher.subscription
        self.subscriber = publisher.subscriber

    def trigger_request(self, n: int) -> None:
        """Make the subscriber ask for more, if it needs to be made to."""
        raise NotImplementedError

    def needs_cancel(self) -> None:
        """``NotApplicable`` if the kit has no means to make the subscriber cancel."""

    def cancel(self) -> None:
        """Make the subscriber cancel."""
        raise NotImplementedError

    def forget(self) -> None:
        """Let go of what the kit itself knows of the subscription."""

    def expect_delivered(self, elements: list[Any], number: str) -> None:
        """Expect that the subscriber has processed these, as far as the kit can see that."""


class Answers:
    """What is asked for comes before ``request`` returns (§3.10); then the end (§3.11).

    A request from within on_next is left to whoever sends already (§3.3).
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

    def are_wanted(self, subscription: ProbeSubscription) -> bool:
        return sum(n for n in subscription.requests if isinstance(n, int)) > self.sent

    def _send_one(self, publisher: ProbePublisher) -> bool:
        subscription = publisher.subscription
        with self._environment.changed:
            index, at_end = self.sent, self.sent == len(self._elements)
            wanted = at_end or self.are_wanted(subscription)
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


class SubscriberTests(Verification):
    """What the official kit does not see of subscribers."""

    hooks: ClassVar[tuple[str, ...]] = ("create_element", "create_failing_subscriber")

    # -- hooks -------------------------------------------------------------------------------------

    def create_element(self, index: int) -> Any:
        """The element that is sent as number ``index``; the number itself by default."""
        return index

    def create_failing_subscriber(self) -> Any:
        """A subscriber whose work fails at its first element (§2.13); or None."""
        return None

    # -- for the tests -----------------------------------------------------------------------------

    def _stage(
        self, *, linger: int = 0, subscribed: bool = True, answers: Answers | None = None
    ) -> Stage:
        raise NotImplementedError

    def _element(self, index: int) -> Any:
        element = self._hook("create_element", index)
        if element is None:
            raise HookFailed("create_element returned None")
        return element

    def _asked(self, stage: Stage, count: int = 1) -> None:
        """Bring the subscriber to have asked for something."""
        stage.trigger_request(count)
        stage.subscription.expect_request("2.1", "a request(n) for its first elements")

    def _send(self, stage: Stage, count: int) -> list[Any]:
        """Send so many elements, each only when asked for; stop where the subscriber cancels."""
        sent: list[Any] = []
        for index in range(count):
            self._wait_for_demand(stage, index)
            if stage.subscription.cancels:
                break
            sent.append(self._element(index))
            stage.publisher.send_next(sent[-1])
        return sent

    def _wait_for_demand(self, stage: Stage, sent: int) -> None:
        subscription = stage.subscription
        if not subscription.cancels:
            stage.trigger_request(1)  # for each one: what is asked ahead may be buffered till then
        self.environment.wait(
            lambda: sum(subscription.requests) > sent or subscription.cancels,
            "2.1",
            f"a request(n) after {sent} elements",
            subscription.seen,
        )

    def _refuses_none(self, stage: Stage, signal: str) -> None:
        """§2.13: ``signal(None)`` raises TypeError."""
        self.environment.history.add("subscriber", signal, None)
        try:
            self.environment.call(getattr(stage.subscriber, signal), None)
        except TypeError:
            return
        except Exception as raised:
            raise RuleBroken(
                "2.13", f"{signal}(None) raises TypeError", f"raised {raised!r}"
            ) from raised
        raise RuleBroken("2.13", f"{signal}(None) raises TypeError", "it returned")

    def _second_subscription(self, stage: Stage) -> ProbeSubscription:
        second = ProbeSubscription(self.environment)
        ProbePublisher(self.environment, stage.subscriber, second).send_subscription()
        second.expect_cancel("2.5", "cancel() of a second subscription")
        if second.requests:
            raise RuleBroken("2.5", "cancel() of a second subscription", second.seen())
        return second

    # -- 2: subscriber -----------------------------------------------------------------------------

    @rule("2.1")
    def beyond_spec201_demandMustGoOnAsLongAsElementsCome(self) -> None:
        """A subscriber that is sent what it asked for goes on asking, or cancels.

        Look at where demand is renewed: after the last element of a portion.
        """
        stage = self._stage()
        sent = self._send(stage, _ELEMENTS)
        stage.expect_delivered(sent, "2.1")
        stage.publisher.send_complete()

    @rule("2.4")
    def beyond_spec204_nothingMustBeRequestedAfterOnComplete(self) -> None:
        """After on_complete the subscription is not asked any more.

        Look at request and its callers: on_complete must make them forget the subscription.
        """
        self._expect_no_request_after("on_complete")

    @rule("2.4")
    def beyond_spec204_nothingMustBeRequestedAfterOnError(self) -> None:
        """After on_error the subscription is not asked any more.

        Look at request and its callers: on_error must make them forget the subscription.
        """
        self._expect_no_request_after("on_error")

    def _expect_no_request_after(self, terminal: str) -> None:
        stage = self._stage()
        self._asked(stage)
        self._end(stage, terminal)
        self.environment.is_quiet(lambda: False)  # calls that were under way are no breach
        before = len(stage.subscription.requests)
        stage.trigger_request(1)
        self.environment.expect_quiet(
            lambda: len(stage.subscription.requests) > before,
            "2.4",
            f"no request after {terminal}",
            lambda: f"request({show(stage.subscription.requests[-1])})",
        )

    @staticmethod
    def _end(stage: Stage, terminal: str) -> None:
        if terminal == "on_complete":
            stage.publisher.send_complete()
        else:
            stage.publisher.send_error(TestError("from the kit's publisher"))

    @rule("2.4")
    def beyond_optional_spec204_theSubscriptionShouldBeLetGoOfAfterTheEnd(self) -> None:
        """After on_complete the subscriber does not keep its subscription alive.

        Look at the attribute that holds the subscription: clear it in on_complete and on_error.
        """
        self._expect_subscription_dropped("on_complete")

    def _expect_subscription_dropped(self, terminal: str) -> None:
        def use() -> tuple[Any, weakref.ref[Any]]:
            stage = self._stage()
            self._asked(stage)
            self._end(stage, terminal)
            stage.forget()
            return stage.subscriber, weakref.ref(stage.subscription)

        subscriber, reference = use()
        expect_collected(
            self.environment,
            reference,
            "2.4",
            f"the subscription is let go of after {terminal}",
            self.timeout,
        )
        del subscriber

    @rule("2.5")
    def beyond_spec205_theFirstSubscriptionMustSurviveASecondOne(self) -> None:
        """A second subscription is cancelled, and the first goes on.

        Look at on_subscribe: it must not replace the subscription it has.
        """
        stage = self._stage()
        self._second_subscription(stage)
        if stage.subscription.cancels:
            raise RuleBroken("2.5", "the second subscription is cancelled", "the first one was")
        self._send(stage, 3)

    @rule("2.5")
    def beyond_spec205_ofSubscriptionsFromTwoThreadsOneMustBeCancelled(self) -> None:
        """Two threads call on_subscribe at once: one subscription is kept, the other cancelled.

        Look at on_subscribe: its look at the subscription it has and its keeping of the new one
        must be one step.
        """
        self._needs_threads()
        for _ in range(_RACES):
            stage = self._stage(subscribed=False)
            subscriptions = [ProbeSubscription(self.environment) for _ in range(2)]
            publishers = [
                ProbePublisher(self.environment, stage.subscriber, each) for each in subscriptions
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

    @rule("2.6")
    def beyond_spec206_stoppingMustCancelTheSubscription(self) -> None:
        """A subscriber that is made to stop cancels its subscription.

        Look at every way in which the subscriber may lose interest.
        """
        stage = self._stage()
        stage.needs_cancel()
        self._asked(stage)
        stage.cancel()
        stage.subscription.expect_cancel("2.6", "cancel() of a subscription no longer wanted")

    @rule("2.7")
    def beyond_spec207_callsOnTheSubscriptionMustNotOverlap(self) -> None:
        """Threads of the subscriber do not call request and cancel at once.

        Look at who requests: on_next and another thread of the subscriber need one lock, or one
        thread that does all calls.
        """
        self._needs_threads()
        stage = self._stage(linger=3)
        self._send(stage, 5)
        stage.publisher.send_complete()

    @rule("2.8")
    def beyond_spec208_elementsAndTheEndMustBeBorneAfterCancel(self) -> None:
        """Elements that were requested, and the end, may still come after cancel.

        Look at what cancel clears and on_next then uses.
        """
        stage = self._stage()
        stage.needs_cancel()
        self._asked(stage, 3)
        stage.cancel()
        stage.subscription.expect_cancel("2.6", "cancel()")
        stage.publisher.send_next(self._element(0))
        stage.publisher.send_next(self._element(1))
        stage.publisher.send_complete()

    @rule("2.8")
    def beyond_spec208_signalsRacingWithCancelMustBeBorne(self) -> None:
        """Elements and the end come from one thread while another makes the subscriber cancel.

        Look at attributes that cancel clears between two uses in on_next.
        """
        self._needs_threads()
        for _ in range(_RACES):
            stage = self._stage()
            stage.needs_cancel()
            self._asked(stage, 3)

            def signal(stage: Stage = stage) -> None:
                for index in range(min(3, sum(stage.subscription.requests))):
                    stage.publisher.send_next(self._element(index))
                stage.publisher.send_complete()

            self.environment.run_together(signal, stage.cancel, rule="2.8")

    @rule("2.9")
    def beyond_spec209_onCompleteMustBeBorneWithinSubscribe(self) -> None:
        """on_complete may follow on_subscribe at once, before anything was delivered.

        Look at state that only the first element sets up.
        """
        self._within_subscribe("on_complete")

    @rule("2.10")
    def beyond_spec210_onErrorMustBeBorneWithinSubscribe(self) -> None:
        """on_error may follow on_subscribe at once, before anything was delivered.

        Look at state that only the first element sets up.
        """
        self._within_subscribe("on_error")

    @rule("2.10")
    def beyond_spec210_onErrorMustBeBorneAfterElements(self) -> None:
        """on_error may come after some elements, with others asked for.

        Look at what on_error does with what was received: it neither raises nor calls cancel.
        """
        stage = self._stage()
        stage.expect_delivered(self._send(stage, 3), "2.11")
        self._end(stage, "on_error")

    def _within_subscribe(self, terminal: str) -> None:
        stage = self._stage(subscribed=False)
        stage.publisher.send_subscription()
        self._end(stage, terminal)

    @rule("2.11")
    def beyond_spec211_signalsFromFreeRunningThreadsMustBeSeenInOrder(self) -> None:
        """Each signal comes from a new thread, one after the other; all are taken, in order.

        Look at thread-locals, at loops taken from the calling thread, at hand-over without a lock.
        """
        self._needs_threads()
        stage = self._stage()
        sent: list[Any] = []
        for index in range(_ELEMENTS):
            self._wait_for_demand(stage, index)
            if stage.subscription.cancels:
                return
            sent.append(self._element(index))
            self._in_free_running_thread(lambda: stage.publisher.send_next(sent[-1]))
        self._in_free_running_thread(stage.publisher.send_complete)
        stage.expect_delivered(sent, "2.11")

    def _in_free_running_thread(self, call: Callable[[], object]) -> None:
        ended = self.environment.start(call, "2.11")
        self.environment.wait(
            ended.is_set, "2.13", "the signal returns", lambda: "it has not returned"
        )

    @rule("2.13")
    def beyond_spec213_elementsFromWithinRequestMustBeBorne(self) -> None:
        """A publisher may call on_next, and at last on_complete, before request returns (§3.10).

        Look at locks held while request is called, and at what is set up only after it: the
        subscription is kept before it is asked.
        """
        sent = [self._element(index) for index in range(_ELEMENTS)]
        answers = Answers(self.environment, sent)
        stage = self._stage(answers=answers)
        subscription = stage.subscription
        stage.trigger_request(_ELEMENTS)
        while not (answers.over or subscription.cancels):
            before = answers.sent
            answers.send(stage.publisher)  # what was asked for too early to be answered within
            if answers.sent == before:
                stage.trigger_request(1)
            self.environment.wait(
                lambda before=before: (  # type: ignore[misc]
                    answers.over
                    or subscription.cancels
                    or answers.sent > before
                    or answers.are_wanted(subscription)
                ),
                "2.1",
                f"a request(n) after {before} elements",
                subscription.seen,
            )
        stage.expect_delivered(sent[: answers.sent], "2.11")

    @rule("2.13")
    def beyond_spec213_elementsWithHostileEqualityMustBeBorne(self) -> None:
        """Elements whose ==, hash and bool raise are taken without raising.

        Look for ``if element:``, ``element == ...`` and ``element in ...``; use ``is``.
        """
        stage = self._stage()
        for index in range(3):
            self._wait_for_demand(stage, index)
            if stage.subscription.cancels:
                return
            stage.publisher.send_next(_hostile(self._element(index)))
        stage.publisher.send_complete()

    @rule("2.13")
    def beyond_spec213_aFailureOfItsOwnMustCancelAndNotRaise(self) -> None:
        """A subscriber whose work fails returns normally from on_next and cancels.

        Look at what runs the user's code in on_next: its exception must become a cancel.
        """
        subscriber = self._hook("create_failing_subscriber")
        if subscriber is None:
            raise NotApplicable("there is no create_failing_subscriber")
        subscription = ProbeSubscription(self.environment)
        publisher = ProbePublisher(self.environment, subscriber, subscription)
        publisher.send_subscription()
        subscription.expect_request("2.1", "a request(n) for the element that will fail")
        publisher.send_next(self._element(0))
        subscription.expect_cancel("2.13", "cancel() after the failure")


class _Raised(Exception):
    """What hostile elements raise."""


#: Types whose values are copied by calling the type.
_PLAIN = (int, float, complex, str, bytes, bytearray, tuple, list, dict, set, frozenset)


def _hostile(element: Any) -> Any:
    """The same as ``element``, and of its type, but ==, hash and bool raise.

    A subscriber may rely on the type and the contents of its elements: where no such copy can be
    made, there is nothing to send it.
    """

    def fail(*_arguments: Any) -> Any:
        raise _Raised("an element's own method")

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
