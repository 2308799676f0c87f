"""The record of one check: every call and every signal, with its time and its thread."""

from __future__ import annotations

import itertools
import threading
import time
from typing import Any

from rstreams_fast.tck.outcome import RAISED

__all__ = ["History", "show", "show_call"]

#: A message shows only this many first and last entries of a history, and of a list of calls.
_HEAD, _TAIL = 30, 30
_FIRST_CALLS, _LAST_CALLS = 5, 3
_LONGEST = 60
#: ``show`` shortens nested lists, tuples and dicts down to this level.
_LEVELS = 4


def show(value: object) -> str:
    """Return ``repr(value)``, shortened. If ``repr`` raises, return a text that says so."""
    try:
        text = repr(_beginning(value, _LEVELS))
    except RAISED as raised:
        text = f"<{type(value).__name__} whose repr raised {type(raised).__name__}>"
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def show_call(name: str, *arguments: object) -> str:
    return f"{name}({', '.join(map(show, arguments))})"


def _beginning(value: Any, levels: int) -> Any:
    """Return ``value``, or its first items: an element may be a batch of many rows."""
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
    """Records calls and signals as text, so it keeps no objects alive. Thread-safe."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self.last_entry_at = self._start  #: the time of the last call or signal
        self._entries: list[tuple[float, str, str]] = []
        self._calls: list[str] = []

    def seconds(self) -> float:
        """Return the seconds since the check began."""
        return time.monotonic() - self._start

    def add(self, text: str) -> None:
        """Record ``text``, which describes a signal or a call of the implementation."""
        # Do not call current_thread(): if the module threading did not make the calling thread,
        # current_thread() would make a Thread object for it.
        ident = threading.get_ident()
        thread = threading._active.get(ident)  # type: ignore[attr-defined]
        name = f"thread {ident}" if thread is None else thread.name
        self.last_entry_at = time.monotonic()
        self._entries.append((self.last_entry_at - self._start, name, text))

    def record_call(self, who: str, call: str, *values: Any) -> None:
        """Record the call ``who.call(*values)``, which the kit is about to make."""
        self.record_call_text(show_call(f"{who}.{call}", *values))

    def record_call_text(self, text: str) -> None:
        """Record a call that the kit is about to make. ``text`` describes the call."""
        self._calls.append(text)
        self.add(text)

    def call_summary(self) -> str:
        """Return a short list of the calls that the kit has made."""
        runs = [(text, len(list(group))) for text, group in itertools.groupby(list(self._calls))]
        texts = [text if times == 1 else f"{text} {times} times" for text, times in runs]
        if len(texts) > _FIRST_CALLS + _LAST_CALLS:
            texts[_FIRST_CALLS:-_LAST_CALLS] = ["..."]
        return ", ".join(texts)

    def __str__(self) -> str:
        entries = list(self._entries)
        if not entries:
            return "  calls and signals: none"
        lines = [f"    {at * 1000:9.2f} ms  {name:<14}  {text}" for at, name, text in entries]
        if len(lines) > _HEAD + _TAIL:
            lines[_HEAD:-_TAIL] = [f"    ... {len(lines) - _HEAD - _TAIL} more ..."]
        return "\n".join(["  calls and signals, in order (time, thread, call):", *lines])
