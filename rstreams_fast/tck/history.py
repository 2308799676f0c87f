"""The record of all signals of one test: when, in which thread, from whom to whom."""

from __future__ import annotations

import threading
import time
from typing import Any

__all__ = ["History", "show"]

#: A longer history is printed without its middle.
_HEAD = 30
_TAIL = 30
_LONGEST = 60


def show(value: object) -> str:
    """``repr(value)``, cut, also of objects whose ``__repr__`` raises."""
    try:
        text = repr(value)
    except Exception as raised:
        text = f"<{type(value).__name__} whose repr raised {type(raised).__name__}>"
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


class History:
    """Keeps text only, so that it never keeps a subscriber or an element alive. Thread-safe."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._entries: list[tuple[float, str, str]] = []

    def add(self, who: str, signal: str, *values: Any) -> None:
        text = f"{who}.{signal}({', '.join(map(show, values))})"
        # Not current_thread(): it would make a Thread object for every free-running thread.
        ident = threading.get_ident()
        thread = threading._active.get(ident)  # type: ignore[attr-defined]
        name = f"thread {ident}" if thread is None else thread.name
        self._entries.append((time.monotonic() - self._start, name, text))

    def __str__(self) -> str:
        entries = list(self._entries)
        if not entries:
            return "  signals: none"
        lines = [f"    {at * 1000:9.2f} ms  {name:<14}  {text}" for at, name, text in entries]
        if len(lines) > _HEAD + _TAIL:
            left_out = f"    ... {len(lines) - _HEAD - _TAIL} more ..."
            lines = [*lines[:_HEAD], left_out, *lines[-_TAIL:]]
        return "\n".join(["  signals, in order (time, thread, call):", *lines])
