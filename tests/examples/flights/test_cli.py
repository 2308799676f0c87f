"""The demo's command line: what it refuses."""

from __future__ import annotations

import pytest

from examples.flights.__main__ import main


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--rows", "0"], "--rows: must be at least 1"),
        (["--rows", str(10**20)], "--rows: must be at most 2147483647"),
        (["--concurrency", str(10**20)], "--concurrency: must be at most 2147483647"),
        (["--buffer-mib", str(10**20)], "--buffer-mib: must be at most 2147483647"),
        (["--batch-rows", str(10**11)], "--batch-rows: must be at most 2147483647"),
        (["--latency-ms", "nan"], "--latency-ms: must be at least 0, is nan"),
        (["--concurrency", "x"], "--concurrency: invalid int value"),
        (["--slow-share", "2"], "--slow-share: must be a share between 0 and 1"),
        (["--latency-ms", "inf"], "--latency-ms: must be finite, is inf"),
        (["--latency-ms", "-1"], "--latency-ms: must be at least 0"),
    ],
)
def test_a_wrong_command_line_is_status_2(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 2
    assert complaint in capsys.readouterr().err
