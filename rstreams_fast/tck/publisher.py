"""Verification of a publisher: the checks of the official kit by their names, and others."""

# The names of the checks are the official kit's, so that tables of both can be joined.
# ruff: noqa: N802

from __future__ import annotations

import functools
import random
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, ClassVar

from rstreams_fast.api import UNBOUNDED
from rstreams_fast.tck.history import show
from rstreams_fast.tck.outcome import NotApplicable, RuleBroken
from rstreams_fast.tck.probes import ProbeFailed, ProbeSubscriber, same
from rstreams_fast.tck.references import expect_collected
from rstreams_fast.tck.verification import PYTHON, STRICT, Verification, check

__all__ = ["PublisherVerification"]

#: More than any counter, queue or burst that a first look would stay below.
_LONG = 1200
#: More than any publisher has under way when it is cancelled: what comes after so many is no delay.
_UNDER_WAY = 2500
#: Elements that would all come if a cancel were not seen.
_MANY = 100
#: Recursion that goes deeper than this, one level for each element, has no bound.
_BOUND = 50
_ROUNDS = 20
_THREADS = 4
_REQUESTS_PER_THREAD = 50
_ELEMENTS_BEFORE_FAILURE = 3
#: The element from within whose on_next the kit cancels.
_BEFORE_CANCEL = 3
#: Seconds for a check that a correct implementation may well not pass.
_SOON = 0.5
#: How often a call may be slow before it counts as slow: the machine may be busy, once.
_ATTEMPTS = 5
#: What a negative request may be at the lowest.
_MOST_NEGATIVE = 2**31
#: What the message of the error for request(-1) should hold one of.
_WORDS_OF_309 = ("3.9", "non-positive subscription request", "negative subscription request")


class PublisherVerification(Verification):
    """Verifies a publisher: define ``create_publisher(elements)`` in a subclass."""

    #: The most elements ``create_publisher`` can give. ``UNBOUNDED`` says that its streams never
    #: complete: the checks that need ``on_complete`` do not apply then.
    max_elements: int = UNBOUNDED - 1
    #: How many subscribers a publisher serves at once.
    max_supported_subscribers: int = UNBOUNDED
    #: How deep ``request`` and ``on_next`` may call each other (§3.3); one is recommended.
    bounded_depth: int = 1
    #: Seconds that ``request(1)`` and ``cancel()`` may take, the best of five (§3.4, §3.5).
    responsivity: float = 0.05
    #: How many elements may follow a ``cancel()`` that was called from within ``on_next``, where
    #: elements come from another thread than the one that called ``request``. (Where they come
    #: from the same thread there is no delay to excuse any.)
    signals_after_cancel: int = 8

    essential_hook = "create_publisher"
    hooks: ClassVar[tuple[str, ...]] = (
        "create_publisher",
        "create_failed_publisher",
        "create_failing_publisher",
    )
    settings: ClassVar[tuple[str, ...]] = (
        *Verification.settings,
        "max_elements",
        "max_supported_subscribers",
        "bounded_depth",
        "responsivity",
        "signals_after_cancel",
    )

    # -- hooks -------------------------------------------------------------------------------------

    def create_publisher(self, elements: int) -> Any:
        """A new publisher of exactly so many elements; of endlessly many for ``UNBOUNDED``."""
        raise NotImplementedError("create_publisher(elements) is the hook that makes a publisher")

    def create_failed_publisher(self) -> Any:
        """A publisher that answers ``subscribe`` by ``on_subscribe``, ``on_error``; or None."""
        return None

    def create_failing_publisher(self, elements: int) -> Any:  # noqa: ARG002
        """A publisher that fails after so many elements (§1.4); or None, if none can be made."""
        return None

    # -- for the checks ----------------------------------------------------------------------------

    def _publisher(self, elements: int, *, completes: bool = False, subscribers: int = 1) -> Any:
        if elements > self.max_elements:
            raise NotApplicable(
                f"needs {elements} elements, and max_elements is {self.max_elements}"
            )
        if completes and self.max_elements == UNBOUNDED:
            raise NotApplicable("needs on_complete, and max_elements = UNBOUNDED says: never")
        self._needs_subscribers(subscribers)
        return self._make("create_publisher", elements)

    def _some(self, elements: int) -> Any:
        """A publisher of so many elements, or of as many as it can give."""
        return self._publisher(max(1, min(elements, self.max_elements)))

    def _needs_subscribers(self, count: int) -> None:
        if count > self.max_supported_subscribers:
            raise NotApplicable(
                f"needs {count} subscribers, and max_supported_subscribers is "
                f"{self.max_supported_subscribers}"
            )

    def _subscribe(self, publisher: Any, subscriber: Any, rule: str = "1.9") -> None:
        """Subscribe; that this raises breaks the rule."""
        self.environment.history.do_text(f"publisher.subscribe({subscriber.name})")
        try:
            self.environment.call(publisher.subscribe, subscriber)
        except Exception as raised:
            self.environment.verify()
            rule = "2.13" if isinstance(raised, ProbeFailed) else rule
            raise RuleBroken(
                rule, "subscribe returns normally", f"it raised {raised!r}"
            ) from raised

    def _subscriber(self, publisher: Any, **reactions: Callable[..., object]) -> ProbeSubscriber:
        """A new subscriber that has been given its subscription."""
        subscriber = ProbeSubscriber(self.environment, **reactions)
        self._subscribe(publisher, subscriber)
        subscriber.expect_subscription()
        return subscriber

    def _expect_settled(self, *subscribers: ProbeSubscriber, rule: str = "1.8") -> None:
        """Wait until no subscriber is signalled for one silence window."""

        def count() -> int:
            return sum(len(subscriber.signals) for subscriber in subscribers)

        def is_silent(before: int) -> bool:
            return self.environment.is_quiet(lambda: count() > before)

        deadline = time.monotonic() + self.timeout
        while not is_silent(count()):
            if time.monotonic() > deadline:
                came = f"signals go on after {self.timeout:g} s: {count()} so far"
                raise RuleBroken(rule, "signals stop after cancel", came)

    def _expect_nothing_more(self, subscriber: ProbeSubscriber, rule: str, expected: str) -> None:
        before = len(subscriber.signals)
        self.environment.expect_quiet(
            lambda: len(subscriber.signals) > before,
            rule,
            expected,
            lambda: show(subscriber.signals[before:]),
        )

    # -- what other checks need --------------------------------------------------------------------

    @check("1.9", establishes="on_subscribe")
    def required_spec109_mustIssueOnSubscribeForNonNullSubscriber(self) -> None:
        """on_subscribe comes, once, before anything else.
        Look at subscribe: on_subscribe is the first signal in every case.
        """
        self._subscriber(self._publisher(1))

    @check("1.1", needs="on_subscribe", establishes="elements on request")
    def required_spec101_subscriptionRequestMustResultInTheCorrectNumberOfProducedElements(
        self,
    ) -> None:
        """Nothing comes before a request; then exactly as much as the requests add up to.
        Look at where demand is read, and whether it is counted down for each element.
        """
        publisher = self._some(5)
        subscriber = self._subscriber(publisher)
        subscriber.expect_silence("1.1", "nothing before the first request")
        subscriber.request(1)
        subscriber.expect_element("3.8", "an element after request(1)")
        if self.max_elements < 5:  # noqa: PLR2004
            return
        subscriber.expect_silence("1.1", "nothing more than the one requested")
        subscriber.request(1)
        subscriber.request(2)
        subscriber.expect_elements(3, "3.8", "3 elements after request(1), request(2)")
        subscriber.expect_silence("1.1", "nothing more than the four requested")

    @check("1.5", needs="elements on request", establishes="on_complete")
    def required_createPublisher1MustProduceAStreamOfExactly1Element(self) -> None:
        """``create_publisher(1)`` gives one element and ends.
        Look at create_publisher itself: many checks rest on its giving what it is asked for. The
        end may wait for one more request, not longer.
        """
        self._exactly(1)

    @check("3.9", needs="on_subscribe", establishes="on_error for request(0)")
    def required_spec309_requestZeroMustSignalIllegalArgumentException(self) -> None:
        """``request(0)`` is answered by on_error.
        Look at the first lines of request: the error goes to on_error, and is not raised.
        """
        self._invalid_request(0)

    # -- 1: publisher ------------------------------------------------------------------------------

    @check("1.5", needs="on_complete")
    def required_createPublisher3MustProduceAStreamOfExactly3Elements(self) -> None:
        """``create_publisher(3)`` gives three elements and ends.
        Look at create_publisher itself: many checks rest on its giving what it is asked for.
        """
        self._exactly(3)

    @check("1.5", needs="on_complete")
    def required_spec105_mustSignalOnCompleteWhenFiniteStreamTerminates(self) -> None:
        """After its last element the stream completes, and stays silent.
        Look at the end of the source. on_complete may wait for one more request, not longer.
        """
        self._exactly(3).expect_silence("1.7", "nothing after on_complete")

    def _exactly(self, count: int) -> ProbeSubscriber:
        subscriber = self._subscriber(self._publisher(count, completes=True))
        for index in range(count):
            subscriber.request(1)
            subscriber.expect_element("1.5", f"element {index + 1} of {count}")
        subscriber.expect_end()
        return subscriber

    @check("1.5", needs="on_complete")
    def optional_spec105_emptyStreamMustTerminateBySignallingOnComplete(self) -> None:
        """A stream of no elements completes, without one.
        Look at what happens when the source is empty from the start.
        """
        subscriber = self._subscriber(self._publisher(0, completes=True))
        if not subscriber.unread:
            subscriber.request(1)
        subscriber.wait_until(lambda me: me.received or me.terminal, "1.5", "on_complete")
        if subscriber.received:
            raise NotApplicable("create_publisher(0) gives an element: no stream of it is empty")
        subscriber.expect_completion("1.5", "on_complete of an empty stream")
        subscriber.expect_silence("1.7", "nothing after on_complete")

    @check("1.1", needs="elements on request")
    def beyond_spec101_aLongStreamMustKeepCountAndOrder(self) -> None:
        """Over 1200 elements, asked for in uneven portions, demand is kept and none is None.
        Look at how demand is counted down, where one burst of elements ends and the next begins.
        """
        subscriber = self._subscriber(self._publisher(_LONG))
        portion = 1
        while subscriber.requested < _LONG:
            subscriber.request(min(portion, _LONG - subscriber.requested))
            portion = portion * 2 % 251  # 1, 2, 4 ... 128, 5, 10 ...
            self._expect_all_requested(subscriber)

    @staticmethod
    def _expect_all_requested(subscriber: ProbeSubscriber) -> None:
        subscriber.wait_until(
            lambda me: me.received >= me.requested,
            "3.8",
            f"{subscriber.requested} elements, as requested",
        )

    @check("1.2", needs="on_complete")
    def required_spec102_maySignalLessThanRequestedAndTerminateSubscription(self) -> None:
        """Three elements of which ten were requested: three come, then on_complete.
        Look at the end of the source: demand that is left must not keep the stream open.
        """
        subscriber = self._subscriber(self._publisher(3, completes=True))
        subscriber.request(10)
        subscriber.expect_elements(3, "1.2")
        subscriber.expect_completion("1.2", "on_complete after the third and last element")

    @check("1.3", needs="on_complete")
    def stochastic_spec103_mustSignalOnMethodsSequentially(self) -> None:
        """Signals never overlap while every on_next asks for one more, many times over.
        Look at which thread may signal: one at a time, and the others leave their work to it.
        """
        for _ in range(_ROUNDS):
            subscriber = self._subscriber(
                self._publisher(10, completes=True),
                on_subscribe=lambda me: me.request(1),
                on_next=lambda me, _element: me.request(1),
            )
            subscriber.wait_until(
                lambda me: me.terminal, "1.3", "10 elements and on_complete, one at a time"
            )

    @check("1.3", STRICT, needs="elements on request")
    def beyond_spec103_signalsMustNotOverlapWhenAnotherThreadRequests(self) -> None:
        """While on_next runs, another thread's request does not start a second on_next.
        Look at request: a thread that finds another one signalling adds its demand and returns.
        (By §2.7 a subscriber should not call request in two threads at once.)
        """
        self._needs_threads()

        def react(me: ProbeSubscriber, _element: Any) -> None:
            if me.received == 1:
                ended = self.environment.start(lambda: me.request(1), "3.16")
                self.environment.pause(
                    lambda: ended.is_set() or me.received > 1, self.environment.silence
                )

        subscriber = self._subscriber(self._publisher(3), on_next=react)
        subscriber.request(1)
        self._expect_all_requested(subscriber)

    @check("1.3", needs="elements on request")
    def beyond_spec103_signalsMustNotOverlapOnSubscribe(self) -> None:
        """While on_subscribe runs, which has asked, no other thread signals.
        Look at the thread that sends what on_subscribe asks for: it must wait for its return.
        """

        def react(me: ProbeSubscriber) -> None:
            me.request(2)
            self._linger(me)

        self._expect_all_requested(self._subscriber(self._publisher(3), on_subscribe=react))

    def _linger(self, subscriber: ProbeSubscriber) -> None:
        """Stay within a signal until there is another one, or for one silence window."""
        before = len(subscriber.signals)
        self.environment.pause(lambda: len(subscriber.signals) > before, self.environment.silence)

    @check("1.3", needs="on_complete")
    def beyond_spec103_signalsMustNotOverlapOnNext(self) -> None:
        """While on_next runs, no other thread signals, neither the next element nor the end.
        Look at which thread may signal: one at a time, and the others leave their work to it, also
        on_complete.
        """
        subscriber = self._subscriber(
            self._publisher(3, completes=True), on_next=lambda me, _element: self._linger(me)
        )
        subscriber.request(5)
        subscriber.wait_until(lambda me: me.terminal, "1.5", "3 elements and on_complete")

    @check("1.3", STRICT, needs="elements on request, on_error for request(0)")
    def beyond_spec103_anInvalidRequestOfAnotherThreadMustNotOverlapOnNext(self) -> None:
        """While on_next runs, another thread's request(-1) waits with its on_error.
        Look at how request refuses: its on_error is left to the thread that is signalling.
        """
        self._needs_threads()

        def react(me: ProbeSubscriber, _element: Any) -> None:
            if me.received == 1:
                self.environment.start(lambda: me.request(-1), "3.16")
                self._linger(me)

        subscriber = self._subscriber(self._publisher(3), on_next=react)
        subscriber.request(1)
        subscriber.wait_until(lambda me: me.terminal, "3.9", "on_error for request(-1)")

    @check("1.4")
    def optional_spec104_mustSignalOnErrorWhenFails(self) -> None:
        """A failed publisher says so by on_error, after on_subscribe, instead of raising.
        Look at what subscribe does when the publisher has failed: it must not raise.
        """
        self._expect_rejection("1.4")

    @check("1.9")
    def required_spec109_mayRejectCallsToSubscribeIfPublisherIsUnableOrUnwillingToServeThemRejectionMustTriggerOnErrorAfterOnSubscribe(  # noqa: E501
        self,
    ) -> None:
        """A publisher that rejects a subscriber calls on_subscribe, then on_error.
        Look at how subscribe rejects: with a subscription that does nothing, then on_error.
        """
        self._expect_rejection("1.9")

    def _expect_rejection(self, rule: str) -> ProbeSubscriber:
        publisher = self._make_if_there("create_failed_publisher")
        subscriber = ProbeSubscriber(self.environment)
        self._subscribe(publisher, subscriber, rule)
        subscriber.expect_subscription(rule)
        subscriber.expect_error(rule, "on_error of the failed publisher")
        return subscriber

    @check("1.4")
    def beyond_spec104_aFailureAfterSomeElementsMustBeSignalled(self) -> None:
        """A source that fails in mid-stream ends in on_error, not in on_complete or silence.
        Look at what catches the source's exception: it must not take it for the end.
        """
        publisher = self._make_if_there("create_failing_publisher", _ELEMENTS_BEFORE_FAILURE)
        subscriber = self._subscriber(publisher)
        subscriber.request(_ELEMENTS_BEFORE_FAILURE)
        subscriber.request(1)
        subscriber.wait_until(lambda me: me.terminal, "1.4", "on_error after the elements")
        if subscriber.terminal == ("on_complete",):
            raise RuleBroken("1.4", "on_error, since the source failed", "on_complete()")
        subscriber.request(1)
        self._expect_nothing_more(subscriber, "1.7", "nothing after on_error")

    @check("1.6", needs="on_complete")
    def beyond_spec106_afterTheEndRequestAndCancelMustBeNops(self) -> None:
        """After on_complete, request and cancel do nothing and raise nothing.
        Look at request and cancel after the end: they must see that the subscription is over.
        """
        self._nothing_after_the_end("1.6", 1, 2, UNBOUNDED)

    @check("1.6", STRICT, needs="on_complete")
    def beyond_spec106_afterTheEndInvalidRequestsMustBeNops(self) -> None:
        """After on_complete, not even request(-1) or request("1") is answered.
        Look at the order of the checks in request: first, whether the subscription is over.
        """
        self._nothing_after_the_end("1.6", 0, -1, "1", None, 2**64)

    @check("1.7", needs="on_complete")
    def required_spec107_mustNotEmitFurtherSignalsOnceOnCompleteHasBeenSignalled(self) -> None:
        """Requests after on_complete bring nothing.
        Look at request after the end: it must see that the subscription is over.
        """
        self._nothing_after_the_end("1.7", 10)

    def _nothing_after_the_end(self, rule: str, *requests: object) -> None:
        subscriber = self._subscriber(self._publisher(1, completes=True))
        subscriber.request(2)
        subscriber.expect_element(rule, "the only element")
        subscriber.expect_completion(rule, "on_complete after the only element")
        for n in requests:
            subscriber.request(n)
        subscriber.cancel()
        subscriber.cancel()
        self._expect_nothing_more(subscriber, rule, "nothing for calls after on_complete")

    @check("1.7", needs="on_error for request(0)")
    def beyond_spec107_nothingMustFollowOnErrorOfAnInvalidRequest(self) -> None:
        """After the on_error that request(-1) brings, requests bring nothing.
        Look at what request(-1) leaves behind: the subscription must be over.
        """
        subscriber = self._subscriber(self._some(10))
        subscriber.request(-1)
        subscriber.expect_error("3.9", "on_error for request(-1)")
        subscriber.request(5)
        subscriber.expect_silence("1.7", "nothing after on_error")

    @check("1.7", needs="on_complete, on_error for request(0)")
    def beyond_spec107_oneEndMustBeTheOnlyOne(self) -> None:
        """Two invalid requests and the end of the source, all at once: one terminal signal comes.
        Look at what is left waiting when a terminal signal is sent: errors and the end must share
        one place.
        """

        def react(me: ProbeSubscriber, _element: Any) -> None:
            _request_each(me, 0, -1, 1)

        subscriber = self._subscriber(self._publisher(1, completes=True), on_next=react)
        subscriber.request(1)
        subscriber.wait_until(lambda me: me.terminal, "3.9", "on_error for request(0)")
        self._expect_nothing_more(subscriber, "1.7", "nothing after the first terminal signal")

    @check("1.7")
    def beyond_spec107_nothingMustFollowOnErrorOfAFailedPublisher(self) -> None:
        """After the on_error of a failed publisher, requests bring nothing.
        Look at the subscription that a failed publisher gives: it must do nothing.
        """
        subscriber = self._expect_rejection("1.4")
        subscriber.request(1)
        subscriber.expect_silence("1.7", "nothing after on_error")

    @check("1.8", needs="elements on request")
    def beyond_spec108_cancelMustStopTheElementsInTheEnd(self) -> None:
        """After a cancel from within on_next, of 2500 elements requested not all come.
        Look at the loop that sends: it must look at the cancelled state, if only now and then.
        """
        after = self._cancel_within_on_next(UNBOUNDED, _UNDER_WAY)
        if after >= _UNDER_WAY - _BEFORE_CANCEL:
            raise RuleBroken(
                "1.8", "the elements stop some time after the cancel", f"all {_UNDER_WAY} of them"
            )

    @check("1.8", STRICT, needs="elements on request")
    def beyond_spec108_cancelFromWithinOnNextShouldStopTheElementsAtOnce(self) -> None:
        """After a cancel from within on_next, elements stop: at once, if they come synchronously.
        Look at the loop that sends: it should look at the cancelled state before each element.
        Where batches are handed to another thread, see the setting signals_after_cancel.
        """
        self._cancel_at_once(_MANY)

    @check("1.8", STRICT, needs="elements on request")
    def beyond_spec108_cancelShouldStopUnboundedDemandAtOnce(self) -> None:
        """The same where everything was requested, which some publishers send by another loop.
        Look at the loop for unbounded demand: it should look at the cancelled state, too.
        """
        self._cancel_at_once(UNBOUNDED)

    def _cancel_at_once(self, demand: int) -> None:
        after = self._cancel_within_on_next(demand, _MANY)
        allowed = 0 if self._synchronous else self.signals_after_cancel
        if after > allowed:
            raise RuleBroken(
                "1.8",
                f"at most {allowed} elements after a cancel from within on_next",
                f"{after} elements after it",
            )

    def _cancel_within_on_next(self, demand: int, elements: int) -> int:
        """Cancel in mid-stream; how many elements follow."""
        requesting = threading.get_ident()
        self._synchronous = True

        def react(me: ProbeSubscriber, _element: Any) -> None:
            self._synchronous &= threading.get_ident() == requesting
            if me.received == _BEFORE_CANCEL:
                me.cancel()

        subscriber = self._subscriber(self._publisher(elements), on_next=react)
        subscriber.request(demand)
        subscriber.wait_until(
            lambda me: me.received >= _BEFORE_CANCEL, "3.8", f"{_BEFORE_CANCEL} elements"
        )
        self._expect_settled(subscriber)
        return subscriber.received - _BEFORE_CANCEL

    @check("1.8", needs="on_subscribe")
    def beyond_spec108_cancelFromWithinOnSubscribeMustPreventAllSignals(self) -> None:
        """A subscriber that cancels from within on_subscribe gets no further signal.
        Look at what subscribe does after on_subscribe: it must look at the cancelled state.
        """
        subscriber = self._subscriber(
            self._some(3),
            on_subscribe=lambda me: [me.cancel(), me.request(3)],
        )
        subscriber.expect_silence("1.8", "nothing after a cancel from within on_subscribe")

    @check("3.5", needs="elements on request")
    def beyond_spec108_cancelRacingWithSignalsMustBeSafe(self) -> None:
        """One thread requests and another cancels while elements flow: no overlap, then silence.
        Look at the state that request, cancel and the sending loop share without a lock.
        """
        self._needs_threads()
        subscribers = []
        for _ in range(_ROUNDS):
            subscriber = self._subscriber(self._publisher(10))
            self.environment.run_together(
                functools.partial(_request_each, subscriber, 1, 2, 1, 4, 1, 1, 1),
                subscriber.cancel,
                rule="3.5",
            )
            subscribers.append(subscriber)
        self._expect_settled(*subscribers)

    @check("1.9", needs="on_subscribe")
    def required_spec109_subscribeThrowNPEOnNullSubscriber(self) -> None:
        """``subscribe(None)`` raises to its caller, whatever the type.
        Look at the first line of subscribe.
        """
        self._expect_subscribe_raises(None, BaseException)

    @check("1.9", PYTHON, needs="on_subscribe")
    def beyond_spec109_subscribeOfNoneShouldRaiseTypeError(self) -> None:
        """``subscribe(None)`` raises TypeError, which stands for Java's NullPointerException.
        Look at the first line of subscribe.
        """
        self._expect_subscribe_raises(None, TypeError)

    @check("1.9", PYTHON, needs="on_subscribe")
    def beyond_spec109_subscribeShouldRefuseWhatIsNoSubscriber(self) -> None:
        """``subscribe`` raises TypeError for an object without the four methods.
        Look at the first lines of subscribe: later the mistake shows far from its cause.
        """
        self._expect_subscribe_raises(object(), TypeError)

    def _expect_subscribe_raises(self, subscriber: object, error: type[BaseException]) -> None:
        publisher = self._some(3)
        shown = "None" if subscriber is None else "object()"
        expected = f"subscribe({shown}) raises"
        expected += "" if error is BaseException else f" {error.__name__}"
        self.environment.history.do_text(f"publisher.subscribe({shown})")
        try:
            self.environment.call(publisher.subscribe, subscriber)
        except error:
            return
        except Exception as raised:
            raise RuleBroken("1.9", expected, f"it raised {raised!r}") from raised
        raise RuleBroken("1.9", expected, "it returned")

    @check("1.9", STRICT, needs="on_subscribe")
    def beyond_spec109_subscribingFromManyThreadsShouldServeEachOnce(self) -> None:
        """Threads subscribe at once: on_subscribe comes once to each, and first.
        Look at what subscribe shares between subscribers.
        """
        self._needs_threads()
        publisher = self._some(3)
        subscribers = [ProbeSubscriber(self.environment) for _ in range(_THREADS)]
        self.environment.run_together(
            *(functools.partial(self._subscribe, publisher, each) for each in subscribers),
            rule="1.9",
        )
        for subscriber in subscribers:
            subscriber.expect_subscription()

    @check("1.10", STRICT, needs="on_subscribe")
    def beyond_spec110_theSameSubscriberTwiceShouldBeRejected(self) -> None:
        """A subscriber that two threads subscribe at once is given one subscription only.
        Look at the registry of subscribers, if there is one: its test and its entry must be one
        step. A publisher that keeps no registry does not meet this, and need not.
        """
        self._needs_threads()
        publisher = self._some(3)
        subscriber = ProbeSubscriber(self.environment)

        def attempt() -> None:
            try:
                self.environment.call(publisher.subscribe, subscriber)
            except RuntimeError as refused:  # one way to refuse: the caller has broken §1.10
                self.environment.history.add(f"publisher refused by {refused!r}")

        self.environment.history.do_text(f"publisher.subscribe({subscriber.name}), in two threads")
        self.environment.run_together(attempt, attempt, rule="1.10")
        subscriber.expect_subscription()

    @check("1.11", STRICT, needs="on_subscribe", establishes="a second subscriber")
    def optional_spec111_maySupportMultiSubscribe(self) -> None:
        """Two subscribers of one publisher are both given a subscription, and no error.
        Look at whether it is meant for one subscriber: then set max_supported_subscribers = 1.
        """
        publisher = self._publisher(1, subscribers=2)
        subscribers = [self._subscriber(publisher) for _ in range(2)]
        self.environment.expect_quiet(
            lambda: any(subscriber.unread for subscriber in subscribers),
            "1.11",
            "no signal before a request",
            lambda: "; ".join(f"{each.name}: {each.came()}" for each in subscribers),
        )

    @check("1.11", STRICT, needs="elements on request, a second subscriber")
    def optional_spec111_registeredSubscribersMustReceiveOnNextOrOnCompleteSignals(self) -> None:
        """Each of two subscribers gets an element or the end.
        Look at whether a second subscriber is kept waiting for ever.
        """
        publisher = self._publisher(1, subscribers=2)
        subscribers = [self._subscriber(publisher) for _ in range(2)]
        for subscriber in subscribers:
            subscriber.request(1)
        expected = "an element or on_complete for each of two subscribers"
        for subscriber in subscribers:
            subscriber.wait_until(lambda me: me.received or me.terminal, "1.11", expected)
            if not subscriber.received and subscriber.terminal != ("on_complete",):
                raise RuleBroken("1.11", expected, show(subscriber.terminal))

    @check("1.11", STRICT, needs="on_complete, a second subscriber")
    def optional_spec111_multicast_mustProduceTheSameElementsInTheSameSequenceToAllOfItsSubscribersWhenRequestingOneByOne(  # noqa: E501
        self,
    ) -> None:
        """Three subscribers that ask at different rates get the same five elements in order.
        Look at how elements are handed to subscribers that are behind.
        """
        publisher = self._publisher(5, completes=True, subscribers=3)
        first, second, third = (self._subscriber(publisher) for _ in range(3))
        steps = [(first, 1), (second, 2), (first, 1), (third, 3), (third, 1), (third, 1)]
        for subscriber, count in [*steps, (second, 3), (first, 2), (first, 1)]:
            subscriber.request(count)
            subscriber.expect_elements(count, "1.11")
        for subscriber in (third, second, first):
            subscriber.expect_end()
        self._expect_equal(first, second, third)

    @check("1.11", STRICT, needs="elements on request, a second subscriber")
    def optional_spec111_multicast_mustProduceTheSameElementsInTheSameSequenceToAllOfItsSubscribersWhenRequestingManyUpfront(  # noqa: E501
        self,
    ) -> None:
        """Three subscribers that ask for everything at once get the same elements in order.
        Look at whether elements sent to the first are kept for the others.
        """
        self._expect_equal(*self._three_at_once(completes=False))

    @check("1.11", STRICT, needs="on_complete, a second subscriber")
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
        publisher = self._publisher(3, completes=completes, subscribers=3)
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

    @check("1.11", needs="elements on request")
    def beyond_spec111_aSubscriberMustNotTouchAnother(self) -> None:
        """What one subscriber asks for does not go to another; nor does its cancel end the other.
        Look at demand and the cancelled state: each subscription has its own.
        """
        publisher = self._publisher(4)
        first, second = self._subscriber(publisher), self._subscriber(publisher)
        first.request(2)
        self._expect_no_element(second, "no element for a subscriber that has not asked")
        second.cancel()
        first.request(1)
        self._expect_served(first, 3, "3 elements, though the other subscriber has cancelled")

    @check("1.11", needs="elements on request")
    def beyond_spec111_aLaterSubscriberMustStartAfresh(self) -> None:
        """Demand that is left when a subscriber cancels does not pass to the next one.
        Look at what the publisher keeps for itself that belongs to a subscription.
        """
        publisher = self._publisher(10)
        first = self._subscriber(publisher, on_next=lambda me, _element: me.cancel())
        first.request(5)
        self._expect_served(first, 1, "an element, as requested")
        second = self._subscriber(publisher)
        self._expect_no_element(second, "no element before its request")
        second.request(1)
        self._expect_served(second, 1, "an element or the end for a later subscriber, on request")

    def _expect_no_element(self, subscriber: ProbeSubscriber, expected: str) -> None:
        self.environment.expect_quiet(lambda: subscriber.received, "1.1", expected, subscriber.came)

    @staticmethod
    def _expect_served(subscriber: ProbeSubscriber, count: int, expected: str) -> None:
        """Expect so many elements, or its end: it may have been rejected."""
        subscriber.wait_until(lambda me: me.received >= count or me.terminal, "1.11", expected)

    # -- 2: what subscribers may do to a publisher -------------------------------------------------

    @check("2.12", PYTHON, needs="elements on request")
    def beyond_spec212_aSubscriberWithHostileEqualityShouldBeServed(self) -> None:
        """A subscriber whose ==, hash, bool and len raise is served like any other.
        Look at ``subscriber in``, ``==``, dictionaries and ``if subscriber:``; use ``is``.
        """
        subscriber = _HostileSubscriber(self.environment)
        self._subscribe(self._publisher(3), subscriber)
        subscriber.expect_subscription()
        subscriber.request(3)
        subscriber.expect_elements(3, "2.12", "3 elements for a subscriber whose == raises")
        subscriber.cancel()

    @check("2.13", STRICT, needs="elements on request")
    def beyond_spec213_whatOnNextRaisesShouldNotLeaveRequest(self) -> None:
        """A subscriber that raises in on_next is cancelled; request does not pass its error on.
        Look at the call of on_next: what it raises is logged, not signalled to the subscriber that
        raised it, and the subscription is over.
        """
        subscriber = self._subscriber(
            self._publisher(10), on_next=lambda _me, _element: _fail("on_next")
        )
        subscriber.request(3)
        subscriber.wait_until(lambda me: me.received, "3.8", "an element")
        subscriber.request(3)
        self._expect_settled(subscriber)
        if subscriber.received > 1 or subscriber.terminal:
            subscriber.expect_element("2.13")
            raise RuleBroken(
                "2.13",
                "nothing after on_next has raised: the subscription counts as cancelled",
                subscriber.came(),
            )

    @check("2.13", STRICT, needs="elements on request")
    def beyond_spec213_whatOnSubscribeRaisesShouldNotLeaveSubscribe(self) -> None:
        """A subscriber that raises in on_subscribe is cancelled; subscribe returns normally.
        Look at the call of on_subscribe: what it raises is logged, and the subscription is over.
        """

        def react(me: ProbeSubscriber) -> None:
            me.request(3)
            _fail("on_subscribe")

        subscriber = self._subscriber(self._publisher(10), on_subscribe=react)
        self._expect_settled(subscriber)
        before = len(subscriber.signals)
        subscriber.request(3)
        self.environment.expect_quiet(
            lambda: len(subscriber.signals) > before,
            "2.13",
            "nothing after on_subscribe has raised: the subscription counts as cancelled",
            lambda: show(subscriber.signals[before:]),
        )

    @check("2.13", STRICT, needs="on_complete")
    def beyond_spec213_whatOnCompleteRaisesShouldNotLeaveRequest(self) -> None:
        """What on_complete raises reaches neither request nor subscribe.
        Look at the call of on_complete: what it raises is logged.
        """
        subscriber = self._subscriber(
            self._publisher(1, completes=True), on_terminal=lambda _me: _fail("on_complete")
        )
        subscriber.request(2)
        subscriber.wait_until(lambda me: me.terminal, "1.5", "an element and on_complete")
        self._expect_nothing_more(subscriber, "1.7", "nothing after an on_complete that raised")

    @check("2.13", STRICT, needs="on_error for request(0)")
    def beyond_spec213_whatOnErrorRaisesShouldNotLeaveRequest(self) -> None:
        """What on_error raises does not reach request.
        Look at the call of on_error: what it raises is logged.
        """
        subscriber = self._subscriber(self._some(3), on_terminal=lambda _me: _fail("on_error"))
        subscriber.request(-1)
        subscriber.wait_until(lambda me: me.terminal, "3.9", "on_error for request(-1)")
        self._expect_nothing_more(subscriber, "1.7", "nothing after an on_error that raised")

    # -- 3: subscription ---------------------------------------------------------------------------

    @check("3.2", needs="elements on request")
    def required_spec302_mustAllowSynchronousRequestCallsFromOnNextAndOnSubscribe(self) -> None:
        """request works from within on_subscribe and on_next.
        Look at locks held while signalling, and at demand that is set before on_subscribe returns.
        """
        elements = 6
        subscriber = self._subscriber(
            self._publisher(elements),
            on_subscribe=lambda me: _request_each(me, 1, 1, 1),
            on_next=lambda me, _element: me.request(1),
        )
        subscriber.wait_until(
            lambda me: me.received >= elements,
            "3.2",
            f"{elements} elements, all asked for from within signals",
        )

    @check("3.3", needs="elements on request")
    def required_spec303_mustNotAllowUnboundedRecursion(self) -> None:
        """Over 1200 elements, each requested within the one before, the depth has a bound.
        Look at request: while elements are being sent it must only add to the demand and return.
        """
        self._expect_depth(max(_BOUND, self.bounded_depth))

    @check("3.3", STRICT, needs="elements on request")
    def beyond_spec303_recursionShouldStayWithinTheBoundedDepth(self) -> None:
        """The same, and on_next is never deeper in itself than ``bounded_depth``.
        Look at paths that are taken later only: a buffer that fills, a burst that ends.
        """
        self._expect_depth(self.bounded_depth)

    def _expect_depth(self, most: int) -> None:
        elements = _LONG if self.max_elements >= _LONG else most + 1

        def react(me: ProbeSubscriber, _element: Any) -> None:
            if me.deepest > most:
                me.cancel()
            elif me.received < elements:
                me.request(1)

        subscriber = self._subscriber(self._publisher(elements), on_next=react)
        subscriber.request(1)
        subscriber.wait_until(
            lambda me: me.received >= elements or me.deepest > most,
            "3.3",
            f"{elements} elements, each requested by the one before it",
        )
        if subscriber.deepest > most:
            raise RuleBroken(
                "3.3",
                f"on_next at most {most} deep in itself",
                f"{subscriber.deepest} deep at element {subscriber.received}",
            )

    @check("3.4", STRICT, needs="elements on request")
    def beyond_spec304_requestShouldReturnSoon(self) -> None:
        """The best of five ``request(1)`` returns within ``responsivity``.
        Look at what request waits for: it should add demand and return, or send one element.
        """

        def attempt() -> float:
            subscriber = self._subscriber(self._publisher(3))
            start = time.monotonic()
            subscriber.request(1)
            return time.monotonic() - start

        self._expect_soon("3.4", "request(1)", attempt)

    @check("3.5", STRICT, needs="elements on request")
    def beyond_spec305_cancelShouldReturnSoon(self) -> None:
        """The best of five ``cancel()`` in mid-stream returns within ``responsivity``.
        Look at what cancel waits for: joins, locks held while signalling, the closing of a source.
        """

        def attempt() -> float:
            subscriber = self._subscriber(self._publisher(3))
            subscriber.request(1)
            subscriber.wait_until(lambda me: me.received, "3.8", "an element")
            start = time.monotonic()
            subscriber.cancel()
            return time.monotonic() - start

        self._expect_soon("3.5", "cancel()", attempt)

    def _expect_soon(self, rule: str, call: str, attempt: Callable[[], float]) -> None:
        best = float("inf")
        for _ in range(_ATTEMPTS):
            best = min(best, attempt())
            if best <= self.responsivity:
                return
        raise RuleBroken(
            rule,
            f"{call} within {self.responsivity * 1000:.0f} ms",
            f"{best * 1000:.0f} ms at the best of {_ATTEMPTS} calls",
        )

    @check("3.5", needs="elements on request")
    def beyond_spec305_cancelMustReturnWhileOnNextRuns(self) -> None:
        """While on_next runs, another thread's cancel returns; it does not wait for on_next.
        Look at locks held while signalling: cancel must not take them.
        """
        self._needs_threads()
        returned: list[bool] = []

        def react(me: ProbeSubscriber, _element: Any) -> None:
            if me.received == 1:
                ended = self.environment.start(me.cancel, "3.15")
                returned.append(self.environment.pause(ended.is_set, self.timeout))

        subscriber = self._subscriber(self._publisher(3), on_next=react)
        subscriber.request(1)
        self.environment.wait(
            lambda: returned, "3.8", "an element", subscriber.came, timeout=2 * self.timeout
        )
        if not all(returned):
            raise RuleBroken(
                "3.5", "cancel() returns while on_next runs", "it waited until on_next had returned"
            )

    @check("3.5", needs="elements on request")
    def beyond_spec305_cancelFromManyThreadsMustBeSafe(self) -> None:
        """Threads that no threading.Thread made cancel at once: no error, and then silence.
        Look at cancel: one caller does the work, the others find it done.
        """
        self._needs_threads()
        subscriber = self._subscriber(self._publisher(10))
        subscriber.request(1)
        subscriber.expect_element("3.8", "an element")
        self.environment.run_together(*[subscriber.cancel] * _THREADS, rule="3.5")
        subscriber.request(1)
        subscriber.expect_silence("3.6", "nothing after four cancels")

    @check("3.6", needs="on_subscribe")
    def required_spec306_afterSubscriptionIsCancelledRequestMustBeNops(self) -> None:
        """Requests after cancel bring nothing.
        Look at request: it must see that the subscription was cancelled.
        """
        self._nothing_after_cancel(1, 1, 1)

    @check("3.6", STRICT, needs="on_subscribe")
    def beyond_spec306_afterCancelInvalidRequestsMustBeNops(self) -> None:
        """After cancel, not even request(0), request("1") or request(None) is answered.
        Look at the order of the checks in request: the cancelled state comes first.
        """
        self._nothing_after_cancel(0, -1, "1", None, 1.5, True)

    def _nothing_after_cancel(self, *requests: object) -> None:
        subscriber = self._subscriber(self._some(3))
        subscriber.cancel()
        for n in requests:
            subscriber.request(n)
        subscriber.expect_silence("3.6", "nothing for requests after cancel")

    @check("3.7", needs="on_subscribe")
    def required_spec307_afterSubscriptionIsCancelledAdditionalCancelationsMustBeNops(self) -> None:
        """Further cancels do nothing.
        Look at cancel: the second call must find nothing left to do.
        """
        subscriber = self._subscriber(self._publisher(1))
        for _ in range(3):
            subscriber.cancel()
        subscriber.expect_silence("3.7", "nothing for three cancels")

    @check("3.8", STRICT, needs="elements on request")
    def beyond_spec308_demandFromSeveralThreadsShouldAddUp(self) -> None:
        """Four threads request fifty times each: two hundred elements come, one at a time.
        Look at how demand is added: ``demand += n`` is two steps. (By §2.7 a subscriber should not
        call request in two threads at once.)
        """
        self._needs_threads()
        subscriber = self._subscriber(self._publisher(_THREADS * _REQUESTS_PER_THREAD + 10))
        ask = functools.partial(_request_each, subscriber, *[1] * _REQUESTS_PER_THREAD)
        self.environment.run_together(*[ask] * _THREADS, rule="3.4")
        self._expect_all_requested(subscriber)
        self._expect_nothing_more(subscriber, "1.1", "no more elements than requested")

    @check("3.8", needs="elements on request")
    def beyond_spec308_demandFromWithinSignalsMustAddUp(self) -> None:
        """Requests while others are unfulfilled: as many elements come as all of them ask for.
        Look at what request does with the demand that is left: it adds to it.
        """
        portions = {1: 3, 2: 1}  # after so many elements, so many more

        def react(me: ProbeSubscriber, _element: Any) -> None:
            if me.received in portions:
                me.request(portions[me.received])

        total = 1 + 2 + sum(portions.values())
        subscriber = self._subscriber(
            self._publisher(total + 3),
            on_subscribe=lambda me: _request_each(me, 1, 2),
            on_next=react,
        )
        subscriber.wait_until(
            lambda me: me.received >= total, "3.8", f"{total} elements for 1 + 2 + 3 + 1 requested"
        )
        self._expect_nothing_more(subscriber, "1.1", f"no more than the {total} requested")

    @check("3.9", needs="on_error for request(0)")
    def required_spec309_requestNegativeNumberMustSignalIllegalArgumentException(self) -> None:
        """A negative request is answered by on_error.
        Look at the first lines of request: the error goes to on_error, and is not raised.
        """
        self._invalid_request(-random.randint(1, _MOST_NEGATIVE))  # noqa: S311

    @check("3.9", STRICT, needs="on_error for request(0)")
    def optional_spec309_requestNegativeNumberMaySignalIllegalArgumentExceptionWithSpecificMessage(
        self,
    ) -> None:
        """The error's text names the rule.
        Look at the text of the ValueError.
        """
        text = str(self._invalid_request(-random.randint(1, _MOST_NEGATIVE)))  # noqa: S311
        if not any(words in text for words in _WORDS_OF_309):
            raise RuleBroken("3.9", f"a text with one of {_WORDS_OF_309}", show(text))

    @check("3.9", PYTHON, needs="on_error for request(0)")
    def beyond_spec309_theErrorShouldBeAValueError(self) -> None:
        """``request(0)`` is answered by a ValueError, for Java's IllegalArgumentException.
        Look at the type of the error that request hands to on_error.
        """
        self._invalid_request(0, ValueError)

    @check("3.9", PYTHON, needs="on_error for request(0)")
    def beyond_spec309_aRequestOfNoIntShouldSignalATypeError(self) -> None:
        """request(True), request(1.5), request("1") and request(None) are answered by TypeError.
        Look at the check of n: it comes before any comparison or addition; a bool is no count.
        """
        for n in (True, 1.5, "1", None):
            self._invalid_request(n, TypeError)

    def _invalid_request(
        self, n: object, error: type[BaseException] = BaseException
    ) -> BaseException:
        subscriber = self._subscriber(self._some(10))
        subscriber.request(n)
        what = "on_error" if error is BaseException else f"on_error({error.__name__})"
        return subscriber.expect_error("3.9", f"{what} for request({show(n)})", error)

    @check("3.9", STRICT, needs="elements on request, on_error for request(0)")
    def beyond_spec309_anInvalidRequestFromWithinOnNextShouldBeSignalledAfterIt(self) -> None:
        """``request(0)`` from within on_next is on_error, once on_next has returned, and the end.
        Look at how the error reaches the loop that sends: it should not overtake on_next.
        """
        within: list[str] = []

        def react(me: ProbeSubscriber, _element: Any) -> None:
            me.request(0)
            if me.terminal is not None:
                within.append("on_error within on_next")

        subscriber = self._subscriber(self._publisher(10), on_next=react)
        subscriber.request(5)
        subscriber.wait_until(lambda me: me.terminal, "3.9", "on_error for request(0)")
        self._expect_nothing_more(subscriber, "1.7", "nothing after on_error")
        if within and self.bounded_depth == 1:
            raise RuleBroken("1.3", "on_error after on_next has returned", within[0])

    @check("3.12", needs="elements on request")
    def required_spec312_cancelMustMakeThePublisherToEventuallyStopSignaling(self) -> None:
        """After a cancel in mid-stream the elements stop.
        Look at the loop that sends: it must look at the cancelled state.
        """
        subscriber = self._subscriber(self._publisher(20))
        subscriber.request(10)
        subscriber.request(5)
        subscriber.expect_element("3.12", "the first of the elements requested")
        subscriber.cancel()
        self._expect_settled(subscriber, rule="3.12")

    @check("3.12", needs="elements on request")
    def beyond_spec312_requestAndCancelMustWorkFromFreeRunningThreads(self) -> None:
        """Each call comes from a new thread that threading did not make, and works.
        Look at thread-locals, at loops taken from the calling thread, at thread identity checks.
        """
        self._needs_threads()
        subscriber = self._subscriber(self._publisher(10))
        for _ in range(3):
            self._call_from_a_new_thread(lambda: subscriber.request(1), "3.12")
            subscriber.expect_element("3.8", "an element for a request from any thread")
        self._call_from_a_new_thread(subscriber.cancel, "3.12")
        subscriber.request(1)
        subscriber.expect_silence("3.12", "nothing after a cancel from any thread")

    @check("3.13", needs="elements on request", establishes="references dropped by cancel")
    def required_spec313_cancelMustMakeThePublisherEventuallyDropAllReferencesToTheSubscriber(
        self,
    ) -> None:
        """After cancel, the publisher does not keep the subscriber alive.
        Look at registries, closures, threads' locals and tracebacks that hold the subscriber.
        """
        self._expect_dropped(lambda publisher: self._take_one(publisher)[0], "cancel")

    @check("3.13", needs="references dropped by cancel")
    def beyond_spec313_theSubscriberMustBeDroppedWithoutAnyRequest(self) -> None:
        """A subscriber that cancels without having asked is not kept alive.
        Look at what is set up by subscribe and cleared by the first element only.
        """

        def use(publisher: Any) -> weakref.ref[Any]:
            subscriber = self._subscriber(publisher)
            subscriber.cancel()
            return weakref.ref(subscriber)

        self._expect_dropped(use, "a cancel without request")

    @check("3.13", needs="references dropped by cancel")
    def beyond_spec313_theSubscriberMustBeDroppedAfterACancelWithinOnNext(self) -> None:
        """A subscriber that cancels from within on_next, with demand left, is not kept alive.
        Look at what the sending loop holds when it is left early.
        """

        def use(publisher: Any) -> weakref.ref[Any]:
            subscriber = self._subscriber(publisher, on_next=lambda me, _element: me.cancel())
            subscriber.request(3)
            subscriber.expect_element("3.8", "an element")
            return weakref.ref(subscriber)

        self._expect_dropped(use, "a cancel from within on_next")

    @check("3.13", STRICT, needs="references dropped by cancel, on_complete")
    def beyond_spec313_theSubscriberShouldBeDroppedAfterTheEnd(self) -> None:
        """After on_complete the publisher does not keep the subscriber alive (§1.6).
        Look at what only cancel clears.
        """

        def use(publisher: Any) -> weakref.ref[Any]:
            subscriber = self._subscriber(publisher)
            subscriber.request(2)
            subscriber.wait_until(lambda me: me.terminal, "1.5", "an element and on_complete")
            return weakref.ref(subscriber)

        self._expect_dropped(use, "on_complete", publisher=self._publisher(1, completes=True))

    @check("3.13", STRICT, needs="references dropped by cancel, on_error for request(0)")
    def beyond_spec313_theSubscriberShouldBeDroppedAfterAnError(self) -> None:
        """After on_error the publisher does not keep the subscriber alive (§1.6).
        Look at errors that the publisher keeps: a traceback keeps the frames it passed through.
        """
        self._expect_dropped(lambda publisher: self._provoke_error(publisher)[0], "on_error")

    @check("3.13", STRICT, needs="references dropped by cancel, on_error for request(0)")
    def beyond_spec313_theErrorShouldNotKeepTheSubscriber(self) -> None:
        """The error of on_error, where it is kept, does not keep the subscriber alive.
        Look at where the error was caught: ``error.with_traceback(None)`` drops the frames.
        """
        kept: list[Any] = []

        def use(publisher: Any) -> weakref.ref[Any]:
            reference, error = self._provoke_error(publisher)
            kept.append(error)
            return reference

        self._expect_dropped(use, "on_error, while its error is kept", timeout=_SOON)

    @check("3.13", STRICT, needs="references dropped by cancel")
    def beyond_spec313_theCancelledSubscriptionShouldNotKeepTheSubscriber(self) -> None:
        """The cancelled subscription, where it is kept, does not keep the subscriber alive.
        Look at cancel: the subscription itself should clear its reference.
        """
        kept: list[Any] = []

        def use(publisher: Any) -> weakref.ref[Any]:
            reference, subscription = self._take_one(publisher)
            kept.append(subscription)
            return reference

        self._expect_dropped(use, "cancel, while its subscription is kept", timeout=_SOON)

    def _take_one(self, publisher: Any) -> tuple[weakref.ref[Any], Any]:
        subscriber = self._subscriber(publisher)
        subscriber.request(1)
        subscriber.expect_element("3.8", "an element before cancel")
        subscriber.cancel()
        return weakref.ref(subscriber), subscriber.subscription

    def _provoke_error(self, publisher: Any) -> tuple[weakref.ref[Any], BaseException]:
        subscriber = self._subscriber(publisher)
        subscriber.request(-1)
        error = subscriber.expect_error("3.9", "on_error for request(-1)")
        return weakref.ref(subscriber), error

    def _expect_dropped(
        self,
        use: Callable[[Any], weakref.ref[Any]],
        after: str,
        *,
        publisher: Any = None,
        timeout: float | None = None,
    ) -> None:
        """Expect that what ``use`` leaves behind is collected, while the publisher lives on."""
        if publisher is None:
            publisher = self._some(3)
        expected = f"no reference to the subscriber after {after}"
        expect_collected(self.environment, use(publisher), "3.13", expected, timeout)

    @check("3.17", needs="on_complete")
    def required_spec317_mustSupportAPendingElementCountUpToLongMaxValue(self) -> None:
        """``request(2**63 - 1)`` brings every element and the end.
        Look at the type and the arithmetic of the demand.
        """
        self._whole_stream(UNBOUNDED)

    @check("3.17", needs="on_complete")
    def required_spec317_mustSupportACumulativePendingElementCountUpToLongMaxValue(self) -> None:
        """Requests that add up to ``2**63 - 1`` bring every element and the end.
        Look at the addition of demand: it must not overflow.
        """
        self._whole_stream(UNBOUNDED // 2, UNBOUNDED // 2, 1)

    @check("3.17", PYTHON, needs="on_complete")
    def beyond_spec317_aRequestThatFitsNoLongShouldCountAsUnbounded(self) -> None:
        """``request(2**63)`` and ``request(2**64)`` bring every element and the end.
        Look at the conversion of n: a larger int counts as 2**63 - 1, without OverflowError.
        """
        self._whole_stream(UNBOUNDED + 1)
        self._whole_stream(2**64)

    def _whole_stream(self, *requests: int) -> None:
        subscriber = self._subscriber(self._publisher(3, completes=True))
        _request_each(subscriber, *requests)
        subscriber.expect_elements(3, "3.17")
        subscriber.expect_completion("3.17", "on_complete after the third and last element")

    @check("3.17", needs="elements on request")
    def required_spec317_mustNotSignalOnErrorWhenPendingAboveLongMaxValue(self) -> None:
        """Demand far above ``2**63 - 1`` counts as unbounded and is no error.
        Look at the addition of demand: it must not go beyond 2**63 - 1.
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

    @check("3.17", needs="elements on request")
    def beyond_spec317_demandMustNotWrapAround(self) -> None:
        """Requests from within on_next add up to ``2**63``, then to ``2**64``: elements go on.
        Look at the addition of demand: it must stay at 2**63 - 1, not begin again at zero.
        """

        def react(me: ProbeSubscriber, _element: Any) -> None:
            if me.received == 1:
                _request_each(me, UNBOUNDED, 1, UNBOUNDED, 1)

        elements = 3
        subscriber = self._subscriber(self._publisher(elements), on_next=react)
        subscriber.request(1)
        subscriber.expect_elements(elements, "3.17")

    @check("3.17", needs="elements on request")
    def beyond_spec317_manySmallRequestsMustAddUp(self) -> None:
        """1200 requests of one, one after the other, bring 1200 elements.
        Look at what happens for each request: a queue that fills, a counter that wraps.
        """
        subscriber = self._subscriber(self._publisher(_LONG))
        _request_each(subscriber, *[1] * _LONG)
        subscriber.wait_until(
            lambda me: me.received >= _LONG, "3.17", f"{_LONG} elements for {_LONG} requests"
        )


def _request_each(subscriber: ProbeSubscriber, *portions: Any) -> None:
    for n in portions:
        subscriber.request(n)


def _fail(where: str) -> None:
    raise ProbeFailed(where)


class _HostileSubscriber(ProbeSubscriber):
    def __eq__(self, other: object) -> bool:
        raise ProbeFailed("==")

    def __hash__(self) -> int:
        raise ProbeFailed("hash")

    def __bool__(self) -> bool:
        raise ProbeFailed("bool")

    def __len__(self) -> int:
        raise ProbeFailed("len")
