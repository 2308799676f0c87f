"""Checks that the blackbox and the whitebox verification of a subscriber share (§2)."""

# The checks have the names of the official Java kit, so that results of both kits can be compared.
# (In the Java kit, names of blackbox checks also contain ``blackbox_``.)
# ruff: noqa: N802

from __future__ import annotations

import copy
import weakref
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from rstreams_fast.tck.history import show
from rstreams_fast.tck.outcome import NotApplicable, RuleBroken
from rstreams_fast.tck.probes import failing_function
from rstreams_fast.tck.references import expect_collected
from rstreams_fast.tck.subscriber.controlled_upstream import ControlledUpstream
from rstreams_fast.tck.upstream import Upstream
from rstreams_fast.tck.verification import PYTHON, STRICT, check

if TYPE_CHECKING:
    from rstreams_fast.tck.subscriber.blackbox import SubscriberBlackboxVerification
    from rstreams_fast.tck.subscriber.whitebox import SubscriberWhiteboxVerification

    Kit: TypeAlias = SubscriberBlackboxVerification | SubscriberWhiteboxVerification

__all__ = ["SubscriberChecks"]

_RACES = 30
_ELEMENTS = 10
#: Even after a larger request, a check sends only this many elements to the subscriber.
_MOST_ELEMENTS = 512


class SubscriberChecks:
    """The checks that the blackbox and the whitebox verification of a subscriber share.

    Both verifications inherit this class, which has no base class. So its methods annotate ``self``
    as ``Kit``, a name for either verification.
    """

    hooks: ClassVar[tuple[str, ...]] = ("create_element", "create_failing_subscriber")

    def create_element(self, index: int) -> Any:
        """Return the element that the kit sends as number ``index``. Default: ``index`` itself.

        Args:
            index: The number of the element, from 0.
        """
        return index

    def create_failing_subscriber(self) -> Any:
        """Return a subscriber whose own code fails at the first element (§2.13); or None."""
        return None

    # -- helpers of the checks ---------------------------------------------------------------------

    def _needs_cancel(self) -> None:
        """Raise ``NotApplicable`` if the kit cannot make the subscriber cancel."""

    def _upstream(
        self: Kit,
        *,
        waiting_calls: int = 0,
        subscribed: bool = True,
        answers: list[Any] | None = None,
    ) -> Any:
        """Return a ``ControlledUpstream``, the kit's publisher, for a new subscriber under test.

        ``subscribed``: whether to call ``on_subscribe``. ``answers``: elements that ``request``
        sends before it returns. ``waiting_calls``: see ``Upstream``.
        """
        upstream = self._make_upstream(waiting_calls)
        if subscribed:
            upstream.start(answers or [])
        return upstream

    def _element(self: Kit, index: int) -> Any:
        return self._make("create_element", index)

    def _upstream_after_request(self: Kit, count: int = 1) -> ControlledUpstream:
        """Return the kit's publisher for a new subscriber that has called ``request``."""
        upstream: ControlledUpstream = self._upstream()
        upstream.trigger_request(count)
        upstream.expect_request("2.1", "a request(n) for its first elements")
        return upstream

    def _upstream_after_cancel(self: Kit, requests: int) -> ControlledUpstream:
        """Return the kit's publisher for a new subscriber that has called request, then cancel."""
        self._needs_cancel()
        upstream = self._upstream_after_request(requests)
        upstream.trigger_cancel()
        upstream.expect_cancel("2.6", "cancel() of a subscription no longer wanted")
        return upstream

    def _send(self: Kit, upstream: ControlledUpstream, count: int) -> list[Any]:
        """Send ``count`` elements, each after it was requested. Return them. A cancel ends this."""
        sent: list[Any] = []
        while len(sent) < count and self._wait_for_demand(upstream, len(sent)):
            sent.append(self._element(len(sent)))
            upstream.send_next(sent[-1])
        return sent

    def _wait_for_demand(self: Kit, upstream: ControlledUpstream, sent: int) -> bool:
        """Wait until one more element is requested. Return ``False`` if the subscriber cancels."""
        if not upstream.cancels:
            upstream.trigger_request(1)  # otherwise the last element might stay in a buffer
        self.environment.wait(
            lambda: upstream.demand > sent or upstream.cancels,
            "2.1",
            f"a request(n) after {sent} elements",
            upstream.came,
        )
        return not upstream.cancels

    # -- requests ----------------------------------------------------------------------------------

    @check("2.1", establishes="a request")
    def required_spec201_mustSignalDemandViaSubscriptionRequest(self: Kit) -> None:
        """The subscriber calls request, and accepts the requested elements and then on_complete.
        Look at on_subscribe: it should call request. If the subscriber's user decides when to
        request, the hook trigger_request, or a whitebox subscriber's puppet, must call request."""
        upstream = self._upstream()
        upstream.trigger_request(1)
        requested = upstream.expect_request()
        for index in range(min(requested, _MOST_ELEMENTS)):
            if upstream.cancels:
                break
            upstream.send_next(self._element(index))
        upstream.send("on_complete")

    @check("2.1", STRICT, needs="a request", establishes="further requests")
    def beyond_spec201_demandShouldGoOnAsLongAsElementsCome(self: Kit) -> None:
        """A subscriber that has got all requested elements requests more, or cancels.
        Look at the code that makes the next request, after the last requested element."""
        upstream = self._upstream()
        upstream.expect_processed(self._send(upstream, _ELEMENTS), "2.1")
        upstream.send("on_complete")

    @check("2.3")
    def required_spec203_mustNotCallMethodsOnSubscriptionOrPublisherInOnComplete(self: Kit) -> None:
        """on_complete calls neither request nor cancel.
        Look at on_complete and at what it calls to clean up."""
        self._end_within_subscribe("on_complete", "2.9")

    @check("2.3")
    def required_spec203_mustNotCallMethodsOnSubscriptionOrPublisherInOnError(self: Kit) -> None:
        """on_error calls neither request nor cancel.
        Look at on_error and at what it calls to clean up."""
        self._end_within_subscribe("on_error", "2.10")

    @check("2.4", STRICT, needs="a request")
    def beyond_spec204_nothingShouldBeRequestedAfterOnComplete(self: Kit) -> None:
        """After on_complete the subscriber does not call request, which has no effect then (§3.6).
        Look at the code that calls request, and at on_complete: it should clear the subscription.
        """
        self._expect_no_request_after("on_complete")

    @check("2.4", STRICT, needs="a request")
    def beyond_spec204_nothingShouldBeRequestedAfterOnError(self: Kit) -> None:
        """After on_error the subscriber does not call request, which has no effect then (§3.6).
        Look at the code that calls request, and at on_error: it should clear the subscription."""
        self._expect_no_request_after("on_error")

    def _expect_no_request_after(self: Kit, terminal: str) -> None:
        upstream = self._upstream_after_request()
        upstream.end(terminal)
        self.environment.is_quiet(lambda: False)  # wait: requests from before the end may come late
        before = len(upstream.requests)
        upstream.trigger_request(1)
        self.environment.expect_quiet(
            lambda: len(upstream.requests) > before,
            "2.4",
            f"no request after {terminal}",
            lambda: f"request({show(upstream.requests[-1])})",
        )

    @check("2.4", STRICT, needs="a request")
    def beyond_spec204_theSubscriptionShouldBeDroppedAfterTheEnd(self: Kit) -> None:
        """After on_complete the subscriber does not keep its subscription alive.
        Look at the attribute that holds the subscription: clear it in on_complete and on_error."""

        def use() -> tuple[Any, weakref.ref[Any]]:
            upstream = self._upstream_after_request()
            upstream.end("on_complete")
            upstream.drop_references()
            return upstream.subscriber, weakref.ref(upstream)

        subscriber, reference = use()
        expected = "no reference to the subscription after on_complete"
        expect_collected(self.environment, reference, "2.4", expected)
        del subscriber

    # -- a second subscription ---------------------------------------------------------------------

    @check("2.5", establishes="second subscriptions are cancelled")
    def required_spec205_mustCallSubscriptionCancelIfItAlreadyHasAnSubscriptionAndReceivesAnotherOnSubscribeSignal(  # noqa: E501
        self: Kit,
    ) -> None:
        """The subscriber cancels a second subscription.
        Look at on_subscribe: it must first check whether the subscriber has a subscription."""
        upstream = self._upstream()
        self._second_subscription(upstream)
        upstream.send("on_complete")

    @check("2.5", STRICT, needs="second subscriptions are cancelled, further requests")
    def beyond_spec205_theFirstSubscriptionShouldSurviveASecondOne(self: Kit) -> None:
        """The subscriber does not request from a second subscription, and keeps using the first.
        Look at on_subscribe: it should not use the new subscription in place of the old one."""
        upstream = self._upstream()
        second = self._second_subscription(upstream)
        if second.requests:
            raise RuleBroken("2.5", "only cancel() of a second subscription", second.came())
        if upstream.cancels:
            raise RuleBroken("2.5", "the second subscription is cancelled", "the first one was")
        self._send(upstream, 3)

    def _second_subscription(self: Kit, upstream: ControlledUpstream) -> Upstream:
        second = Upstream(self.environment, upstream.subscriber)
        second.send_subscription()
        second.expect_cancel("2.5", "cancel() of a second subscription")
        return second

    @check("2.5", STRICT, needs="second subscriptions are cancelled")
    def beyond_spec205_ofSubscriptionsFromTwoThreadsOneShouldBeCancelled(self: Kit) -> None:
        """Two threads call on_subscribe at the same time. One subscription is kept, the other
        cancelled.
        Look at on_subscribe: it should check for a subscription and store the new one in one
        step."""
        self._needs_threads()
        for _ in range(_RACES):
            subscriber = self._upstream(subscribed=False).subscriber
            one, other = (Upstream(self.environment, subscriber) for _ in range(2))
            self.environment.run_together(
                one.send_subscription, other.send_subscription, rule="2.5"
            )
            self._expect_one_kept(one, other)

    def _expect_one_kept(self: Kit, one: Upstream, other: Upstream) -> None:
        self.environment.wait(
            lambda: one.cancels or other.cancels,
            "2.5",
            "one of two subscriptions is cancelled",
            lambda: "none was cancelled",
        )
        if one.cancels and other.cancels:
            raise RuleBroken("2.5", "one of two subscriptions is kept", "both were cancelled")
        (other if one.cancels else one).send("on_complete")

    # -- cancels -----------------------------------------------------------------------------------

    @check("2.6", needs="a request", establishes="cancel on demand")
    def beyond_spec206_stoppingMustCancelTheSubscription(self: Kit) -> None:
        """A subscriber that is made to stop cancels its subscription.
        Look at every way in which the subscriber may stop early."""
        self._upstream_after_cancel(1)

    @check("2.7", needs="further requests")
    def beyond_spec207_callsOnTheSubscriptionMustNotOverlap(self: Kit) -> None:
        """The subscriber's calls of request and cancel do not overlap.
        Look at which threads call request and cancel. Several threads need a common lock, or one
        thread must make all calls."""
        self._needs_threads()
        upstream = self._upstream(waiting_calls=3)
        self._send(upstream, 5)
        upstream.send("on_complete")

    @check("2.8", needs="cancel on demand")
    def required_spec208_mustBePreparedToReceiveOnNextSignalsAfterHavingCalledSubscriptionCancel(
        self: Kit,
    ) -> None:
        """After cancel the subscriber accepts requested elements and on_complete.
        Look at attributes that cancel clears and on_next uses."""
        upstream = self._upstream_after_cancel(3)
        for index in range(min(2, upstream.demand)):
            upstream.send_next(self._element(index))
        upstream.trigger_request(1)
        upstream.send("on_complete")

    @check("2.8", STRICT, needs="cancel on demand")
    def beyond_spec208_signalsRacingWithCancelShouldBeAccepted(self: Kit) -> None:
        """The subscriber accepts elements and on_complete while another thread makes it cancel.
        Look at attributes that cancel may clear between two uses in on_next."""
        self._needs_threads()
        self._needs_cancel()
        for _ in range(_RACES):
            upstream = self._upstream_after_request(3)

            def signal(upstream: ControlledUpstream = upstream) -> None:
                for index in range(min(3, upstream.demand)):
                    upstream.send_next(self._element(index))
                upstream.send("on_complete")

            self.environment.run_together(signal, upstream.trigger_cancel, rule="2.8")

    # -- terminal signals --------------------------------------------------------------------------

    @check("2.9", needs="a request")
    def required_spec209_mustBePreparedToReceiveAnOnCompleteSignalWithPrecedingRequestCall(
        self: Kit,
    ) -> None:
        """The subscriber accepts on_complete after a request, before any element.
        Look at on_complete: it must not rely on an earlier element."""
        self._upstream_after_request().end("on_complete", "2.9")

    @check("2.9")
    def required_spec209_mustBePreparedToReceiveAnOnCompleteSignalWithoutPrecedingRequestCall(
        self: Kit,
    ) -> None:
        """The subscriber accepts on_complete right after on_subscribe, without any request.
        Look at on_complete: it must not rely on an earlier request."""
        self._upstream().end("on_complete", "2.9")
        self._end_within_subscribe("on_complete", "2.9")

    @check("2.10", needs="a request")
    def required_spec210_mustBePreparedToReceiveAnOnErrorSignalWithPrecedingRequestCall(
        self: Kit,
    ) -> None:
        """The subscriber accepts on_error after a request, before any element.
        Look at on_error: it must not rely on an earlier element, and must not raise."""
        self._upstream_after_request(2).end("on_error", "2.10")

    @check("2.10")
    def required_spec210_mustBePreparedToReceiveAnOnErrorSignalWithoutPrecedingRequestCall(
        self: Kit,
    ) -> None:
        """The subscriber accepts on_error right after on_subscribe, without any request.
        Look at on_error: it must not rely on an earlier request, and must not raise."""
        self._upstream().end("on_error", "2.10")
        self._end_within_subscribe("on_error", "2.10")

    @check("2.10", needs="further requests")
    def beyond_spec210_onErrorMustBeAcceptedAfterElements(self: Kit) -> None:
        """The subscriber accepts on_error after some elements, while it has requested more.
        Look at what on_error does with received elements: it must neither raise nor cancel."""
        upstream = self._upstream()
        upstream.expect_processed(self._send(upstream, 3), "2.11")
        upstream.end("on_error", "2.10")

    def _end_within_subscribe(self: Kit, terminal: str, rule: str) -> None:
        upstream = self._upstream(subscribed=False)
        upstream.send_subscription()
        upstream.end(terminal, rule)

    # -- accepting and refusing signals ------------------------------------------------------------

    @check("2.11", needs="further requests")
    def beyond_spec211_signalsFromFreeRunningThreadsMustBeSeenInOrder(self: Kit) -> None:
        """Each signal comes from a new thread, one after the other. The subscriber processes all of
        them in order.
        Look at thread-locals, at state without a lock, and at code that looks for an event loop in
        the calling thread."""
        self._needs_threads()
        upstream = self._upstream()
        sent: list[Any] = []
        while len(sent) < _ELEMENTS:
            if not self._wait_for_demand(upstream, len(sent)):
                return
            sent.append(self._element(len(sent)))
            self._call_from_a_new_thread(lambda: upstream.send_next(sent[-1]), "2.11")
        self._call_from_a_new_thread(lambda: upstream.send("on_complete"), "2.11")
        upstream.expect_processed(sent, "2.11")

    @check("2.13")
    def required_spec213_onSubscribe_mustThrowNullPointerExceptionWhenParametersAreNull(
        self: Kit,
    ) -> None:
        """``on_subscribe(None)`` raises an exception of any type.
        Look at the first line of on_subscribe."""
        self._expect_refusal("on_subscribe", BaseException)

    @check("2.13")
    def required_spec213_onNext_mustThrowNullPointerExceptionWhenParametersAreNull(
        self: Kit,
    ) -> None:
        """``on_next(None)`` raises an exception of any type.
        Look at the first line of on_next."""
        self._expect_refusal("on_next", BaseException)

    @check("2.13")
    def required_spec213_onError_mustThrowNullPointerExceptionWhenParametersAreNull(
        self: Kit,
    ) -> None:
        """``on_error(None)`` raises an exception of any type.
        Look at the first line of on_error."""
        self._expect_refusal("on_error", BaseException)

    @check("2.13", PYTHON)
    def beyond_spec213_whatIsRaisedForNoneShouldBeATypeError(self: Kit) -> None:
        """on_subscribe(None), on_next(None) and on_error(None) raise TypeError.
        Look at the first lines of these methods."""
        for signal in ("on_subscribe", "on_next", "on_error"):
            self._expect_refusal(signal, TypeError)

    def _expect_refusal(self: Kit, signal: str, error: type[BaseException]) -> None:
        upstream = self._upstream(subscribed=signal != "on_subscribe")
        self._expect_raises("2.13", error, upstream.subscriber, signal, None)

    @check("2.13", needs="a request")
    def beyond_spec213_elementsFromWithinRequestMustBeAccepted(self: Kit) -> None:
        """The subscriber accepts on_next and on_complete before its request call returns (§3.10).
        Look at locks that are held while request is called, and at attributes that are set only
        afterwards: on_subscribe must store the subscription before it calls request."""
        elements = [self._element(index) for index in range(_ELEMENTS)]
        upstream = self._upstream(answers=elements)
        upstream.trigger_request(_ELEMENTS)
        while not (upstream.end_sent or upstream.cancels):
            before = upstream.sent
            upstream.send_answers()  # also sends elements that were requested before answer_by()
            if upstream.sent == before and not self._requests_more(upstream):
                break
        upstream.expect_processed(elements[: upstream.sent], "2.11")

    def _requests_more(self: Kit, upstream: ControlledUpstream) -> bool:
        """Return whether the subscriber requests more elements, which it need not do."""
        before = upstream.sent
        upstream.trigger_request(1)
        return not self.environment.is_quiet(
            lambda: (
                upstream.end_sent
                or upstream.cancels
                or upstream.sent > before
                or upstream.demand > upstream.sent
            )
        )

    @check("2.13", STRICT, needs="further requests")
    def beyond_spec213_elementsWithHostileEqualityShouldBeAccepted(self: Kit) -> None:
        """on_next accepts an element whose ==, hash and bool raise.
        Look at ``if element:``, ``element == ...`` and ``element in ...``; use ``is``."""
        upstream = self._upstream()
        for index in range(3):
            if not self._wait_for_demand(upstream, index):
                return
            upstream.send_next(_hostile_copy(self._element(index)))
        upstream.send("on_complete")

    @check("2.13")
    def beyond_spec213_aFailureOfItsOwnMustCancelAndNotRaise(self: Kit) -> None:
        """If the subscriber's own code fails, on_next returns normally, and the subscriber cancels.
        Look at the code in on_next that runs the user's code: it must catch exceptions and cancel.
        """
        upstream = Upstream(self.environment, self._make_optional("create_failing_subscriber"))
        upstream.send_subscription()
        upstream.expect_request("2.1", "a request(n) for the element that will fail")
        upstream.send_next(self._element(0))
        upstream.expect_cancel("2.13", "cancel() after the failure")


#: ``_hostile_copy`` copies an element of these types by calling a subclass of its type.
_PLAIN = (int, float, complex, str, bytes, bytearray, tuple, list, dict, set, frozenset)


def _hostile_copy(element: Any) -> Any:
    """Return a copy of ``element`` whose ==, hash and bool raise.

    A subscriber may need the type and contents of ``element``. So the copy has the same contents,
    and its type is a subclass. If no such copy can be made, the check does not apply.
    """
    fail = failing_function("an element's own method")
    methods = {"__eq__": fail, "__hash__": fail, "__bool__": fail, "__ne__": fail}
    kind = type(element)
    try:
        if kind in _PLAIN:
            return type("Hostile", (kind,), methods)(element)
        hostile = type("Hostile", (kind,), {**methods, "__slots__": ()})
        made = copy.copy(element)
        object.__setattr__(made, "__class__", hostile)  # a frozen dataclass has its own __setattr__
    except Exception as raised:
        raise NotApplicable(f"no {kind.__name__} can be made whose == raises: {raised}") from raised
    return made
