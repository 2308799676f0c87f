"""What stops the demo, and with which exit status."""

from __future__ import annotations

from typing import Final

__all__ = ["EXIT_DIFFERENT", "EXIT_FAILED", "EXIT_INTERRUPTED", "EXIT_OK", "DemoError"]

EXIT_OK: Final = 0
EXIT_DIFFERENT: Final = 1
"""The job ran, and its result is not what the plain join gives."""
EXIT_FAILED: Final = 3
"""The job could not run, or failed. (2 is argparse's: the command line is wrong.)"""
EXIT_INTERRUPTED: Final = 130
"""Ctrl-C, as shells have it."""


class DemoError(Exception):
    """Something that the user can mend; its text is the whole message."""
