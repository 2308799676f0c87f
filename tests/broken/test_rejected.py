"""The kit rejects each broken implementation: by the check, at the grade and in the words that it
declares.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from rstreams_fast.api import UNBOUNDED
from rstreams_fast.tck import (
    IdentityProcessorVerification,
    PublisherVerification,
    SubscriberBlackboxVerification,
    SubscriberWhiteboxVerification,
    WhiteboxProbe,
)
from rstreams_fast.tck.runner import ERROR, Result, run
from tests.broken.endless import ENDLESS, Endless, SlowCalls, SlowPublisher
from tests.broken.processors import CorrectProcessor, processors
from tests.broken.publishers import (
    CorrectFailed,
    CorrectFailing,
    CorrectPublisher,
    CorrectRegistry,
    CorrectSubscription,
    publishers,
    with_subscription,
)
from tests.broken.races import OnThreads, Queueing, QueueingWhitebox, States, Waiting
from tests.broken.registry import IMPATIENT, Case, expect_rejected
from tests.broken.subscribers import CorrectFailing as FailingSubscriber
from tests.broken.subscribers import CorrectSubscriber, CorrectWhitebox, blackbox, whitebox
from tests.helpers import DEADLINE

# On a busy machine the kit leaves a check, and looks again with patience. The exception that ends
# the left thread may come within a callback of the collector, Hypothesis's too, or of a reference.
pytestmark = pytest.mark.filterwarnings(
    r"ignore:[\s\S]*CheckAbandoned:pytest.PytestUnraisableExceptionWarning"
)

# The correct ones, from which each broken one differs in one point, are collected: they must pass.


class OfCorrectPublisher(PublisherVerification):
    fail_on = "strict"
    not_claimed = ("beyond_spec110_*",)  # it keeps no list of its subscribers

    def create_publisher(self, elements: int) -> Any:
        return CorrectPublisher(elements)

    def create_failed_publisher(self) -> Any:
        return CorrectFailed()

    def create_failing_publisher(self, elements: int) -> Any:
        return CorrectFailing(elements)


class OfCorrectRegistry(OfCorrectPublisher):
    not_claimed = ()

    def create_publisher(self, elements: int) -> Any:
        return CorrectRegistry(elements)


class OfOnThreads(OfCorrectPublisher):
    subscription: type[CorrectSubscription] = OnThreads

    def create_publisher(self, elements: int) -> Any:
        return with_subscription(self.subscription)(elements)


class OfWaiting(OfOnThreads):
    subscription = Waiting


class OfStates(OfOnThreads):
    subscription = States


class OfEndless(OfCorrectPublisher):
    max_elements = UNBOUNDED

    def create_publisher(self, elements: int) -> Any:
        return Endless(elements)


class OfCorrectSubscriber(SubscriberBlackboxVerification):
    fail_on = "strict"

    def create_subscriber(self) -> Any:
        return CorrectSubscriber()

    def trigger_cancel(self, subscriber: Any) -> None:
        subscriber.stop()

    def create_failing_subscriber(self) -> Any:
        return FailingSubscriber()


class OfCorrectWhitebox(SubscriberWhiteboxVerification):
    fail_on = "strict"

    def create_whitebox_subscriber(self, probe: WhiteboxProbe) -> Any:
        return CorrectWhitebox(probe)

    def create_failing_subscriber(self) -> Any:
        return FailingSubscriber()


class OfQueueing(OfCorrectSubscriber):
    def create_subscriber(self) -> Any:
        return Queueing()


class OfQueueingWhitebox(OfCorrectWhitebox):
    def create_whitebox_subscriber(self, probe: WhiteboxProbe) -> Any:
        return QueueingWhitebox(probe)


class OfCorrectProcessor(IdentityProcessorVerification):
    fail_on = "strict"
    not_claimed = ("beyond_spec110_*",)

    def create_identity_processor(self, buffer_size: int) -> Any:
        return CorrectProcessor(buffer_size)

    def create_failed_publisher(self) -> Any:
        return CorrectFailed()


@pytest.mark.parametrize("case", publishers.cases, ids=lambda case: case.id)
def test_a_broken_publisher_is_rejected(case: Case) -> None:
    hook = case.broken.hook  # type: ignore[attr-defined]
    expect_rejected(
        OfCorrectPublisher, case, **{hook: lambda _self, elements=0: case.broken(elements)}
    )


@pytest.mark.parametrize("case", blackbox.cases, ids=lambda case: case.id)
def test_a_broken_subscriber_is_rejected(case: Case) -> None:
    hook = getattr(case.broken, "hook", "create_subscriber")
    expect_rejected(OfCorrectSubscriber, case, **{hook: lambda _self: case.broken()})


@pytest.mark.parametrize("case", whitebox.cases, ids=lambda case: case.id)
def test_a_broken_whitebox_subscriber_is_rejected(case: Case) -> None:
    made = {"create_whitebox_subscriber": lambda _self, probe: case.broken(probe)}
    expect_rejected(OfCorrectWhitebox, case, **made)


@pytest.mark.parametrize("case", processors.cases, ids=lambda case: case.id)
def test_a_broken_processor_is_rejected(case: Case) -> None:
    made = {"create_identity_processor": lambda _self, buffer_size: case.broken(buffer_size)}
    expect_rejected(OfCorrectProcessor, case, **made)


# -- what does not end, or takes its time ----------------------------------------------------------


def judge(broken: type[CorrectPublisher]) -> list[Result]:
    made = {"create_publisher": lambda _self, elements: broken(elements)}
    return list(run(type("Judged", (PublisherVerification,), {**IMPATIENT, **made})))


@pytest.fixture(scope="module")
def judged() -> dict[type[CorrectPublisher], list[Result]]:
    """What the whole kit finds in each, side by side: they wait more than they work."""
    with ThreadPoolExecutor(len(ENDLESS)) as pool:
        return dict(zip(ENDLESS, pool.map(judge, ENDLESS), strict=True))


@pytest.mark.parametrize("broken", ENDLESS, ids=lambda broken: broken.__name__)
def test_what_does_not_end_is_told_so(
    broken: type[CorrectPublisher], judged: dict[type[CorrectPublisher], list[Result]]
) -> None:
    results = judged[broken]
    rules = {result.broken.rule for result in results if result.broken is not None}
    assert rules >= ENDLESS[broken]
    assert not [result for result in results if result.outcome == ERROR]
    assert sum(result.seconds for result in results) < DEADLINE


@pytest.mark.slow
def test_what_takes_its_time_is_told_so_after_a_few_hundred_calls() -> None:
    before = next(SlowCalls.calls)
    results = list(
        run(
            type(
                "Judged",
                (OfCorrectPublisher,),
                {
                    "timeout": 3.0,
                    "create_publisher": lambda _self, elements: SlowPublisher(elements),
                },
            )
        )
    )
    assert {result.broken.rule for result in results if result.broken} == {"3.4", "3.5"}
    assert next(SlowCalls.calls) - before < 750  # 30 s
