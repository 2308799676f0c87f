"""What the tests of streams share."""

from __future__ import annotations

import sys
from typing import Any

import pytest


@pytest.fixture
def unraisable(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What could be raised nowhere, as ``sys.unraisablehook`` is given it."""
    seen: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", seen.append)
    return seen
