"""The kit rejects each broken processor by the expected test and words; a correct one passes."""

from __future__ import annotations

from typing import Any

import pytest

from rstreams_fast.tck import IdentityProcessorVerification
from rstreams_fast.tck.runner import BROKEN, NOT_MET
from tests.broken.processors import CorrectProcessor, processors
from tests.broken.publishers import CorrectFailed
from tests.broken.registry import Case, judge


class OfCorrectProcessor(IdentityProcessorVerification):
    def create_identity_processor(self, buffer_size: int) -> Any:
        return CorrectProcessor(buffer_size)

    def create_failed_publisher(self) -> Any:
        return CorrectFailed()


@pytest.mark.parametrize("case", processors.cases, ids=lambda case: case.id)
def test_a_broken_processor_is_rejected(case: Case) -> None:
    result = judge(
        OfCorrectProcessor,
        case,
        create_identity_processor=lambda _self, buffer_size: case.broken(buffer_size),
    )
    assert result.outcome == (NOT_MET if result.test.kind == "optional" else BROKEN), result
    assert case.says in result.message, result.message
