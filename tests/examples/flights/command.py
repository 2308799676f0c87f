"""The demo as a process: how to start it, and to look for what it leaves behind."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil

__all__ = ["Command", "launch"]

ROOT = Path(__file__).parents[3]

COMMAND_SECONDS = 270.0


@dataclass
class Command:
    """A process of its own, which keeps all its temporary files in one directory."""

    process: subprocess.Popen[str]
    temporary: Path

    def finish(self) -> tuple[int, str, str]:
        """Wait for the end; return the exit status and what was printed."""
        try:
            out, err = self.process.communicate(timeout=COMMAND_SECONDS)
        finally:
            for left in self.family():
                left.kill()
        return self.process.returncode, out, err

    def family(self) -> list[psutil.Process]:
        """The processes that carry this command's mark in their environment, itself included."""
        mine = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("TMPDIR") == str(self.temporary):
                    mine.append(process)
            except psutil.Error:
                continue
        return mine

    def files(self) -> list[Path]:
        """What is left of its temporary files."""
        return list(self.temporary.iterdir())


def launch(folder: Path, *arguments: str, script: str | None = None) -> Command:
    """Start the demo in ``folder`` with arguments, or a script given as ``script``."""
    temporary = folder / "temporary files"  # with a space, which not all programs can take
    temporary.mkdir()
    program = ["-m", "examples.flights"] if script is None else ["-c", script]
    process = subprocess.Popen(
        [sys.executable, *program, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": str(ROOT)},
        start_new_session=True,  # a signal to its group is a terminal's Ctrl-C, and not ours
    )
    return Command(process, temporary)
