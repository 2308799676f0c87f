"""What is ours gets all the time that a busy machine may take; a test that passes needs none."""

from __future__ import annotations

import pytest

from rstreams_fast.tck import PublisherVerification
from rstreams_fast.tck.verification import Verification
from tests.helpers import DEADLINE


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Verification, "timeout", DEADLINE)
    monkeypatch.setattr(Verification, "limit", 3 * DEADLINE)
    monkeypatch.setattr(PublisherVerification, "reference_timeout", DEADLINE)
