"""What we ship is judged at every grade, and gets all the time that a busy machine may take."""

from __future__ import annotations

import pytest

from rstreams_fast.tck import Verification
from tests.helpers import DEADLINE


@pytest.fixture(autouse=True)
def patient(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check that passes does not use this time."""
    if isinstance(request.instance, Verification):
        monkeypatch.setattr(Verification, "timeout", DEADLINE)
        monkeypatch.setattr(Verification, "fail_on", "strict")
