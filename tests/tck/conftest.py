"""What is ours gets all the time that a busy machine may take; a test that passes needs none."""

from __future__ import annotations

import pytest

from rstreams_fast.tck import PublisherVerification
from rstreams_fast.tck.verification import Verification
from tests.tck import PATIENT


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in PATIENT.items():
        owner = Verification if hasattr(Verification, name) else PublisherVerification
        monkeypatch.setattr(owner, name, seconds)
