"""What keeps the specification passes at ``spec``, however plain: the specification's own examples,
and implementations that do less than a careful one would.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from rstreams_fast.api import UNBOUNDED
from rstreams_fast.tck import (
    IdentityProcessorVerification,
    PublisherVerification,
    SubscriberBlackboxVerification,
    SubscriberWhiteboxVerification,
    Verification,
    list_checks,
)
from rstreams_fast.tck.runner import BROKEN, ERROR, KEPT, Result, run
from tests.broken import processors, publishers, subscribers
from tests.tck import specification_examples as examples


def judge(verification: type[Verification], **members: Any) -> list[Result]:
    """Every check of the kit on what the hooks make; at ``spec`` all must be kept."""
    judged = type("Judged", (verification,), {"silence": 0.02, "timeout": 3.0, **members})
    results = list(run(judged))
    failed = [
        result
        for result in results
        if result.outcome == ERROR or (result.outcome == BROKEN and result.check.grade == "spec")
    ]
    assert not failed, failed[0].message
    assert sum(result.outcome == KEPT for result in results) > len(list_checks(judged)) // 2
    return results


# -- the specification's own examples --------------------------------------------------------------
@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


def test_the_range_of_the_specification() -> None:
    judge(
        PublisherVerification,
        create_publisher=lambda _self, elements: examples.RangePublisher(1, elements),
    )


def failing(elements: int) -> Iterator[int]:
    yield from range(elements)
    raise OSError("the source failed, as it should")


def test_the_asynchronous_iterable_of_the_specification(executor: ThreadPoolExecutor) -> None:
    judge(
        PublisherVerification,
        create_publisher=lambda _self, elements: examples.AsyncIterablePublisher(
            range(elements), executor
        ),
        create_failed_publisher=lambda _self: examples.AsyncIterablePublisher(failing(0), executor),
        create_failing_publisher=lambda _self, elements: examples.AsyncIterablePublisher(
            failing(elements), executor
        ),
    )


class Endless:
    """All numbers, again for each subscriber."""

    def __iter__(self) -> Iterator[int]:
        return itertools.count()


def test_the_unbounded_range_of_the_specification(executor: ThreadPoolExecutor) -> None:
    judge(
        PublisherVerification,
        max_elements=UNBOUNDED,
        create_publisher=lambda _self, _elements: examples.AsyncIterablePublisher(
            Endless(), executor
        ),
    )


def fail(_element: Any) -> bool:
    raise ValueError("the work failed, as it should")


@pytest.mark.parametrize("name", ["SyncSubscriber", "AsyncSubscriber"])
def test_the_subscribers_of_the_specification(name: str, executor: ThreadPoolExecutor) -> None:
    kind = getattr(examples, name)
    arguments = (executor,) if kind is examples.AsyncSubscriber else ()
    judge(
        SubscriberBlackboxVerification,
        create_subscriber=lambda _self: kind(lambda _element: True, *arguments),
        create_failing_subscriber=lambda _self: kind(fail, *arguments),
        trigger_cancel=lambda _self, subscriber: subscriber.stop(),
    )


# -- correct, and plain ----------------------------------------------------------------------------
class FifteenMoreAfterCancel(publishers.TenMoreAfterCancel):
    left = 15


class RaisesForNoInt(publishers.CorrectSubscription):
    def check(self, n: Any) -> Exception | None:
        return ValueError("§3.9: n must be at least 1") if n + 0 < 1 else None


class RecursesThreeDeep(publishers.CorrectSubscription):
    def prepare(self, subscriber: Any) -> None:
        self.nested = threading.local()  # a request of another thread is not nested

    def depth(self) -> int:
        return getattr(self.nested, "depth", 0)

    def request(self, n: Any, /) -> None:
        if self.take(n) or 0 < self.depth() < 3:
            self.drain()

    def call(self, method: Any, *arguments: Any) -> None:
        self.nested.depth = self.depth() + 1
        super().call(method, *arguments)
        self.nested.depth -= 1


class Unsynchronized(publishers.CorrectSubscription):
    """Relies on calls that come one after the other (§2.7), and on subscribers that never raise."""

    def request(self, n: Any, /) -> None:
        if self.subscriber is None:
            return
        refused = self.check(n)
        if refused is None:
            self.demand = self.add(n)
        else:
            self.refused = self.refused or refused
        if not self.draining:
            self.draining = True
            self.drain()

    def call(self, method: Any, *arguments: Any) -> None:
        method(*arguments)


class StumblesOverNone(subscribers.CorrectSubscriber):
    def on_subscribe(self, subscription: Any, /) -> None:
        subscription.request  # noqa: B018 - AttributeError for None
        super().on_subscribe(subscription)


class StumblesOverObjects(publishers.CorrectPublisher):
    def subscribe(self, subscriber: Any, /) -> None:
        self.subscription(subscriber, iter(self.source())).start()


PUBLISHERS = {
    "15 elements after a cancel": (
        publishers.with_subscription(FifteenMoreAfterCancel),
        {"strict beyond_spec108_cancelFromWithinOnNextShouldStopTheElementsAtOnce"},
    ),
    "a subscription that keeps its subscriber": (
        publishers.with_subscription(publishers.CancelSetsAFlagOnly),
        {"strict beyond_spec313_theCancelledSubscriptionShouldNotKeepTheSubscriber"},
    ),
    "AttributeError for subscribe(object()) and subscribe(None)": (
        StumblesOverObjects,
        {
            "python beyond_spec109_subscribeShouldRefuseWhatIsNoSubscriber",
            "python beyond_spec109_subscribeOfNoneShouldRaiseTypeError",
        },
    ),
    "request('1') raises": (
        publishers.with_subscription(RaisesForNoInt),
        {"python beyond_spec309_aRequestOfNoIntShouldSignalATypeError"},
    ),
    "an invalid request after the end is answered": (
        publishers.with_subscription(publishers.StillChecks),
        {"strict beyond_spec106_afterTheEndInvalidRequestsMustBeNops"},
    ),
    "recursion three deep": (
        publishers.with_subscription(RecursesThreeDeep),
        {"strict beyond_spec303_recursionShouldStayWithinTheBoundedDepth"},
    ),
    "no lock, and no care for subscribers that raise": (
        publishers.with_subscription(Unsynchronized),
        {"strict beyond_spec213_whatOnNextRaisesShouldNotLeaveRequest"},
    ),
}


def told(results: list[Result]) -> set[str]:
    return {f"{each.check.grade} {each.check.name}" for each in results if each.outcome == BROKEN}


@pytest.mark.parametrize("what", PUBLISHERS)
def test_a_correct_publisher_passes_at_spec_and_is_told_what_is_plain(what: str) -> None:
    publisher, expected = PUBLISHERS[what]
    results = judge(
        PublisherVerification, create_publisher=lambda _self, elements: publisher(elements)
    )
    assert told(results) >= expected


SUBSCRIBERS = {
    "a request after on_complete": (
        subscribers.AsksAfterTheEnd,
        {"strict beyond_spec204_nothingShouldBeRequestedAfterOnComplete"},
    ),
    "a subscription that is kept": (
        subscribers.KeepsItsSubscription,
        {"strict beyond_spec204_theSubscriptionShouldBeDroppedAfterTheEnd"},
    ),
    "it asks once": (
        subscribers.AsksOnce,
        {"strict beyond_spec201_demandShouldGoOnAsLongAsElementsCome"},
    ),
    "AttributeError for on_subscribe(None)": (
        StumblesOverNone,
        {"python beyond_spec213_whatIsRaisedForNoneShouldBeATypeError"},
    ),
}


@pytest.mark.parametrize("what", SUBSCRIBERS)
def test_a_correct_subscriber_passes_at_spec_and_is_told_what_is_plain(what: str) -> None:
    subscriber, expected = SUBSCRIBERS[what]
    if issubclass(subscriber, subscribers.CorrectWhitebox):
        made = {"create_whitebox_subscriber": lambda _self, probe: subscriber(probe)}
        results = judge(SubscriberWhiteboxVerification, **made)
    else:
        results = judge(
            SubscriberBlackboxVerification, create_subscriber=lambda _self: subscriber()
        )
    assert told(results) >= expected


@pytest.mark.parametrize(
    ("kind", "most"),
    [(processors.CountsOnWhatIsOwed, UNBOUNDED), (processors.CountsOnWhatIsOwedToOne, 1)],
)
def test_a_processor_may_count_on_what_upstream_owes(kind: Any, most: int) -> None:
    """What was asked for by subscribers that have cancelled need not be asked for again."""
    results = judge(
        IdentityProcessorVerification,
        max_supported_subscribers=most,
        timeout=2.0,
        create_identity_processor=lambda _self, size: kind(size),
    )
    assert "strict beyond_spec111_aLaterSubscriberMustBeServed" in told(results)


def test_a_processor_need_not_cancel_upstream() -> None:
    results = judge(
        IdentityProcessorVerification,
        create_identity_processor=lambda _self, size: processors.NeverCancelsUpstream(size),
    )
    assert "strict beyond_spec401_cancelOfTheLastSubscriberShouldCancelUpstream" in told(results)
