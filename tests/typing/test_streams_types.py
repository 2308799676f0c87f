"""The types of streams and protocols that users' checkers see, as mypy --strict sees them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROBE = Path(__file__).with_name("streams_probe.py")


def test_fluent_methods_and_variance_are_typed() -> None:
    process = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", str(PROBE)],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    about_us = [line for line in process.stdout.splitlines() if PROBE.stem in line]
    assert about_us == []
    assert process.returncode in (0, 1), process.stderr
