"""What we ship is judged at every grade, and gets all the time that a busy machine may take.

All but one class for each part of the engine are slow: there are thousands of checks.
"""

from __future__ import annotations

import pytest

from rstreams_fast.tck import Verification
from rstreams_fast.tck.plugin import VerificationClass
from tests.helpers import DEADLINE
from tests.tck import EACH_PART


@pytest.hookimpl(tryfirst=True)  # before what is slow is left out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item.parent, VerificationClass) and item.parent.name not in EACH_PART:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(autouse=True)
def patient(request: pytest.FixtureRequest) -> None:
    """A check that passes does not use this time."""
    judged = request.instance
    if isinstance(judged, Verification):
        for name, value in (("timeout", DEADLINE), ("fail_on", "strict")):
            if getattr(judged, name) == getattr(Verification, name):
                setattr(judged, name, value)
