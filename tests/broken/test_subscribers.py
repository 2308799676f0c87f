"""The kit rejects each broken subscriber by the expected test and words; correct ones pass."""

from __future__ import annotations

from typing import Any

import pytest

from rstreams_fast.tck import (
    SubscriberBlackboxVerification,
    SubscriberWhiteboxVerification,
    WhiteboxProbe,
)
from rstreams_fast.tck.runner import BROKEN, NOT_MET
from tests.broken.registry import Case, judge
from tests.broken.subscribers import (
    CorrectFailing,
    CorrectSubscriber,
    CorrectWhitebox,
    blackbox,
    whitebox,
)


class OfCorrectSubscriber(SubscriberBlackboxVerification):
    def create_subscriber(self) -> Any:
        return CorrectSubscriber()

    def trigger_cancel(self, subscriber: Any) -> None:
        subscriber.stop()

    def create_failing_subscriber(self) -> Any:
        return CorrectFailing()


class OfCorrectWhitebox(SubscriberWhiteboxVerification):
    def create_whitebox_subscriber(self, probe: WhiteboxProbe) -> Any:
        return CorrectWhitebox(probe)

    def create_failing_subscriber(self) -> Any:
        return CorrectFailing()


@pytest.mark.parametrize("case", blackbox.cases, ids=lambda case: case.id)
def test_a_broken_subscriber_is_rejected(case: Case) -> None:
    hook = getattr(case.broken, "hook", "create_subscriber")
    _expect_rejected(OfCorrectSubscriber, case, **{hook: lambda _self: case.broken()})


@pytest.mark.parametrize("case", whitebox.cases, ids=lambda case: case.id)
def test_a_broken_whitebox_subscriber_is_rejected(case: Case) -> None:
    _expect_rejected(
        OfCorrectWhitebox,
        case,
        create_whitebox_subscriber=lambda _self, probe: case.broken(probe),
    )


def _expect_rejected(verification: Any, case: Case, **hooks: Any) -> None:
    result = judge(verification, case, **hooks)
    assert result.outcome == (NOT_MET if result.test.kind == "optional" else BROKEN), result
    assert case.says in result.message, result.message
