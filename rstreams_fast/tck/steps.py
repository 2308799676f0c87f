"""Stops a thread of the implementation at a chosen line, while another thread calls."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Final

__all__ = ["Steps"]

#: Files that are no code of the implementation: the kit's, and Python's module threading.
_NOT_THEIRS: Final = (str(Path(__file__).parent), threading.__file__)


class Steps:
    """Counts the Python lines that a thread executes after ``begin``, and stops it at one line.

    Before line number ``stop_at``, counted from 1, the thread calls ``at_step``, and goes on when
    ``at_step`` returns. If a debugger or a coverage tool already traces the thread, no lines are
    counted.
    """

    def __init__(self, stop_at: int = 0, at_step: Callable[[], object] | None = None) -> None:
        self.seen = 0
        self.place = ""  #: where the thread was stopped
        self._stop_at = stop_at
        self._at_step = at_step
        self._is_on = False
        self._is_over = False

    def begin(self) -> None:
        """Count the lines of this thread from now on, in its callers and in all their calls.

        Only the first call has an effect.
        """
        if self._is_on or self._is_over or not _is_free(sys.gettrace()):
            return
        self._is_on = True
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if _is_theirs(frame):
                frame.f_trace = self._trace
            frame = frame.f_back
        sys.settrace(self._trace)

    def end(self) -> None:
        """Stop counting. If another thread is traced, its trace ends at its next line."""
        self._is_over = True
        self._leave_this_thread()

    def _leave_this_thread(self) -> None:
        if sys.gettrace() == self._trace:
            sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, _argument: object) -> Any:
        if self._is_over:
            self._leave_this_thread()
            return None
        if event == "call" and not _is_theirs(frame):
            return None
        if event == "line":
            self.seen += 1
            if self.seen == self._stop_at and self._at_step is not None:
                code = frame.f_code
                name = Path(code.co_filename).name
                self.place = f"line {frame.f_lineno} of {name}, in {code.co_name}"
                self._at_step()
        return self._trace


def _is_theirs(frame: FrameType) -> bool:
    return not frame.f_code.co_filename.startswith(_NOT_THEIRS)


def _is_free(trace: object) -> bool:
    """Whether this thread is not traced, or only by an earlier ``Steps``."""
    return trace is None or isinstance(getattr(trace, "__self__", None), Steps)
