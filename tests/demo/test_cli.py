"""The command line: what it refuses, what it tells."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from importlib.machinery import ModuleSpec

import pytest

import rstreams_fast
from rstreams_fast.cli import main
from tests.helpers import PROCESS_DEADLINE


def test_info_says_what_is_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info"]) == 0
    told = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert told["rstreams_fast"].startswith(rstreams_fast.__version__)
    assert told["backend"] == rstreams_fast.backend
    assert sys.executable in told["python"]
    assert "64 calls" in told["spark"]


def test_info_without_java_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "")
    assert main(["info"]) == 0
    assert "not found" in capsys.readouterr().out


@pytest.mark.parametrize("buffered", ["", "1"])
@pytest.mark.parametrize(
    "arguments", [["info"], ["tck", "tests.tck.test_command:Kept", "--only", "1.9"]]
)
def test_that_nobody_reads_any_more_is_no_failure(arguments: list[str], buffered: str) -> None:
    """As with ``| head``, which had read enough before the first line came."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-c", "from rstreams_fast.cli import main; exit(main())", *arguments],
            stdout=writing,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": buffered},
            timeout=PROCESS_DEADLINE,
            check=False,
        )
    finally:
        os.close(writing)
    assert done.stderr == b""
    assert done.returncode == 128 + signal.SIGPIPE


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["demo", "--rows", "0"], "--rows: must be at least 1"),
        (["demo", "--rows", str(10**20)], "--rows: must be at most 2147483647"),
        (["demo", "--concurrency", str(10**20)], "--concurrency: must be at most 2147483647"),
        (["demo", "--buffer-mib", str(10**20)], "--buffer-mib: must be at most 2147483647"),
        (["demo", "--batch-rows", str(10**11)], "--batch-rows: must be at most 2147483647"),
        (["demo", "--latency-ms", "nan"], "--latency-ms: must be at least 0, is nan"),
        (["demo", "--concurrency", "x"], "--concurrency: invalid int value"),
        (["demo", "--slow-share", "2"], "--slow-share: must be a share between 0 and 1"),
        (["demo", "--latency-ms", "inf"], "--latency-ms: must be finite, is inf"),
        (["demo", "--latency-ms", "-1"], "--latency-ms: must be at least 0"),
        (["dance"], "invalid choice"),
        ([], "required: COMMAND"),
    ],
)
def test_a_wrong_command_line_is_status_2(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 2
    assert complaint in capsys.readouterr().err


def test_the_demo_without_its_extra_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec

    def find(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name == "aiohttp" else found(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", find)
    assert main(["demo"]) == 3
    complaint = capsys.readouterr().err
    assert "not installed: aiohttp" in complaint
    assert "pip install 'rstreams_fast[demo]'" in complaint
