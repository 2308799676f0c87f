"""What the tests of streams share."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture
def unraisable() -> Iterator[list[Any]]:
    """What could be raised nowhere, as ``sys.unraisablehook`` is given it."""
    seen: list[Any] = []
    before, sys.unraisablehook = sys.unraisablehook, seen.append
    yield seen
    sys.unraisablehook = before
