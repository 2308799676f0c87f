"""What tests of calls share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spark.conftest import name, temporary_in

__all__ = ["name"]


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Have the host's temporary directory in one of the test's, for other processes, too."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with temporary_in(tmp_path):
        yield tmp_path
