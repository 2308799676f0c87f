"""The examples of docs/tck.md, as they stand there."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from rstreams_fast.tck.command import VERIFICATIONS
from tests.helpers import run_python

PAGE = Path(__file__).parents[2] / "docs" / "tck.md"
PLUGIN = "rstreams_fast.tck.plugin"
PROMISED = "§3.3 is broken: request and on_next must not call each other without a bound"


@pytest.fixture
def examples(tmp_path: Path) -> Path:
    """A folder with every file that the page shows."""
    found = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(found) == 5
    for name, text in found:
        (tmp_path / name).write_text(text)
    return tmp_path


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_python("-m", *arguments, cwd=folder, check=False)


def test_the_correct_examples_pass(examples: Path) -> None:
    done = run(examples, "pytest", "-p", PLUGIN, "-q", "test_collector.py", "test_ticker.py")
    assert done.returncode == 0, done.stdout
    assert re.search(r"^\d+ passed", done.stdout.splitlines()[-1])


def test_the_first_example_breaks_what_the_page_says(examples: Path) -> None:
    only = ("-k", "spec303_must or spec309_requestZero or createPublisher3")
    done = run(examples, "pytest", "-p", PLUGIN, "-q", "test_countdown.py", *only)
    assert done.returncode == 1, done.stdout
    assert PROMISED in done.stdout
    assert "came:     51 deep at element 51" in done.stdout
    assert "2 failed, 1 passed" in done.stdout.splitlines()[-1]


@pytest.mark.parametrize("rule", ["3.3", "1.2"])
def test_the_commands_run(examples: Path, rule: str) -> None:
    target = "countdown_factory:Factory"
    command = ("rstreams_fast.cli", "tck", target, "--only", rule, "--json", "result.json")
    done = run(examples, *command)
    assert done.returncode == (1 if rule == "3.3" else 0), done.stdout + done.stderr
    assert (PROMISED in done.stdout) == (rule == "3.3")
    assert (examples / "result.json").exists()


def test_the_page_names_every_hook_and_setting() -> None:
    page = PAGE.read_text()
    for verification in VERIFICATIONS.values():
        for name in (*verification.hooks, *verification.settings):
            assert f"`{name}" in page, name
