"""The record of all signals of one test: when, in which thread, from whom to whom."""

from __future__ import annotations

import itertools
import threading
import time
from typing import Any

__all__ = ["History", "show"]

#: A longer history is printed without its middle.
_HEAD = 30
_TAIL = 30
_LONGEST = 60
#: Of lists in lists in lists: so many levels are cut.
_LEVELS = 4


def show(value: object) -> str:
    """``repr(value)``, cut, also of objects whose ``__repr__`` raises."""
    try:
        text = repr(_beginning(value, _LEVELS))
    except Exception as raised:
        text = f"<{type(value).__name__} whose repr raised {type(raised).__name__}>"
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _beginning(value: Any, levels: int) -> Any:
    """As much of it as is shown: an element may be a batch of many thousand rows."""
    kind = type(value)
    if kind in (str, bytes):
        return value[:_LONGEST]
    if kind in (list, tuple) and levels:
        return kind(_beginning(each, levels - 1) for each in value[:_LONGEST])
    if kind is dict and levels:
        shown = itertools.islice(value.items(), _LONGEST)
        return {key: _beginning(each, levels - 1) for key, each in shown}
    return value


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
