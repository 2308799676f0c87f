"""What stops the demo, and with which exit status."""

from __future__ import annotations

import sys
from typing import Final

__all__ = ["EXIT_DIFFERENT", "EXIT_FAILED", "EXIT_INTERRUPTED", "EXIT_OK", "DemoError", "complain"]

EXIT_OK: Final = 0
EXIT_DIFFERENT: Final = 1
"""The job ran, and its result is not what the plain join gives."""
EXIT_FAILED: Final = 3
"""The job could not run, or failed. (2 is argparse's: the command line is wrong.)"""
EXIT_INTERRUPTED: Final = 130
"""Ctrl-C, as shells have it."""


class DemoError(Exception):
    """Something that the user can mend; its text is the whole message."""


_FRAMES: Final = ("\tat ", "\t...", "        at ", "        ...")


def complain(text: str) -> None:
    """Print an error to standard error, without the JVM's stack frames: those are in the log."""
    lines = [line for line in text.splitlines() if not line.startswith(_FRAMES)]
    print("demo: " + "\n".join(lines), file=sys.stderr)
