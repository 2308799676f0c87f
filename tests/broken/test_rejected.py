"""The kit rejects each broken implementation: by the check, at the grade and in the words that it
declares.
"""

from __future__ import annotations

from typing import Any

import pytest

from rstreams_fast.tck import (
    IdentityProcessorVerification,
    PublisherVerification,
    SubscriberBlackboxVerification,
    SubscriberWhiteboxVerification,
    WhiteboxProbe,
)
from tests.broken.processors import CorrectProcessor, processors
from tests.broken.publishers import (
    CorrectFailed,
    CorrectFailing,
    CorrectPublisher,
    CorrectRegistry,
    publishers,
)
from tests.broken.registry import Case, expect_rejected
from tests.broken.subscribers import (
    CorrectFailing as FailingSubscriber,
)
from tests.broken.subscribers import (
    CorrectSubscriber,
    CorrectWhitebox,
    blackbox,
    whitebox,
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
