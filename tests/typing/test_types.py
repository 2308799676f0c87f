"""The types that users' checkers see, as mypy --strict sees them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers import run_python

PROBES = sorted(Path(__file__).parent.glob("*_probe.py"))


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.stem)
def test_the_types_of_the_probe_are_what_it_says(probe: Path) -> None:
    done = run_python(
        "-m", "mypy", "--strict", "--no-error-summary", str(probe), check=False, timeout=110
    )
    about_us = [line for line in done.stdout.splitlines() if probe.stem in line]
    assert about_us == []
    assert done.returncode in (0, 1), done.stderr
