"""The kit rejects each broken publisher by the expected test and words; correct ones pass."""

from __future__ import annotations

from typing import Any

import pytest

from rstreams_fast.tck import PublisherVerification
from rstreams_fast.tck.runner import BROKEN, NOT_MET
from tests.broken.publishers import (
    CorrectFailed,
    CorrectFailing,
    CorrectPublisher,
    CorrectRegistry,
    publishers,
)
from tests.broken.registry import Case, judge


class OfCorrectPublisher(PublisherVerification):
    def create_publisher(self, elements: int) -> Any:
        return CorrectPublisher(elements)

    def create_failed_publisher(self) -> Any:
        return CorrectFailed()

    def create_failing_publisher(self, elements: int) -> Any:
        return CorrectFailing(elements)


class OfCorrectRegistry(OfCorrectPublisher):
    def create_publisher(self, elements: int) -> Any:
        return CorrectRegistry(elements)


@pytest.mark.parametrize("case", publishers.cases, ids=lambda case: case.id)
def test_a_broken_publisher_is_rejected(case: Case) -> None:
    hook = case.broken.hook  # type: ignore[attr-defined]
    result = judge(
        OfCorrectPublisher,
        case,
        **{hook: lambda _self, elements=0: case.broken(elements)},
    )
    strict = result.test.kind != "optional" or result.test.strict
    assert result.outcome == (BROKEN if strict else NOT_MET), result.message
    assert case.says in result.message, result.message
