"""The command line: what it refuses, what it tells."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

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
    ("arguments", "complaint"), [(["dance"], "invalid choice"), ([], "required: COMMAND")]
)
def test_a_wrong_command_is_status_2(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 2
    assert complaint in capsys.readouterr().err
