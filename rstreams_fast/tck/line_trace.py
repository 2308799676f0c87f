"""``LineTrace``: stops a thread of the implementation at a line, to let another thread act."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Final

__all__ = ["LineTrace"]

#: Lines of these files are not counted: the files of the kit, and Python's module threading.
_OTHER_FILES: Final = (str(Path(__file__).parent), threading.__file__)


class LineTrace:
    """Counts the Python lines that a thread executes after ``begin``, and stops it at one line.

    Before line number ``stop_at``, counted from 1, the thread calls ``at_stop``, and goes on when
    ``at_stop`` returns. If a debugger or a coverage tool already traces the thread, no lines are
    counted.
    """

    def __init__(self, stop_at: int = 0, at_stop: Callable[[], object] | None = None) -> None:
        self.lines = 0
        self.place = ""  #: a text that names the line at which the thread was stopped
        self._stop_at = stop_at
        self._at_stop = at_stop
        self._is_on = False
        self._is_over = False

    def begin(self) -> None:
        """Count the lines that this thread executes from now on.

        Lines of the functions that have called this method count, too. Only the first call of
        ``begin`` has an effect.
        """
        if self._is_on or self._is_over or not _is_untraced(sys.gettrace()):
            return
        self._is_on = True
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if _is_implementation(frame):
                frame.f_trace = self._trace
            frame = frame.f_back
        sys.settrace(self._trace)

    def end(self) -> None:
        """Stop counting. Any thread may call this. The traced thread stops counting at its next
        line.
        """
        self._is_over = True
        self._untrace_this_thread()

    def _untrace_this_thread(self) -> None:
        if sys.gettrace() == self._trace:
            sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, _argument: object) -> Any:
        if self._is_over:
            self._untrace_this_thread()
            return None
        if event == "call" and not _is_implementation(frame):
            return None
        if event == "line":
            self.lines += 1
            if self.lines == self._stop_at and self._at_stop is not None:
                code = frame.f_code
                name = Path(code.co_filename).name
                self.place = f"line {frame.f_lineno} of {name}, in {code.co_name}"
                self._at_stop()
        return self._trace


def _is_implementation(frame: FrameType) -> bool:
    return not frame.f_code.co_filename.startswith(_OTHER_FILES)


def _is_untraced(trace: object) -> bool:
    """Whether ``trace``, a thread's trace function, is ``None`` or belongs to a ``LineTrace``."""
    return trace is None or isinstance(getattr(trace, "__self__", None), LineTrace)
