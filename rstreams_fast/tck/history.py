"""The record of one check: every call and every signal, when, and in which thread."""

from __future__ import annotations

import itertools
import threading
import time
from typing import Any

__all__ = ["History", "show", "show_call"]

#: A longer history is printed without its middle; so is what was done.
_HEAD, _TAIL = 30, 30
_FIRST_DONE, _LAST_DONE = 5, 3
_LONGEST = 60
#: Of lists in lists in lists, so many levels are cut.
_LEVELS = 4


def show(value: object) -> str:
    """``repr(value)``, cut; also of objects whose ``__repr__`` raises."""
    try:
        text = repr(_beginning(value, _LEVELS))
    except Exception as raised:
        text = f"<{type(value).__name__} whose repr raised {type(raised).__name__}>"
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def show_call(name: str, *arguments: object) -> str:
    return f"{name}({', '.join(map(show, arguments))})"


def _beginning(value: Any, levels: int) -> Any:
    """The part of it that is shown: an element may be a batch of many thousand rows."""
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
    """Keeps text only, so it never keeps a subscriber or an element alive. Thread-safe."""

    def __init__(self) -> None:
        self._start = self.last = time.monotonic()  #: ``last``: when something last happened
        self._entries: list[tuple[float, str, str]] = []
        self._done: list[str] = []

    def seconds(self) -> float:
        """How long ago the check began."""
        return time.monotonic() - self._start

    def add(self, text: str) -> None:
        """Something happened: a signal, or a call of the implementation."""
        # Not current_thread(): it would make a Thread object for every free-running thread.
        ident = threading.get_ident()
        thread = threading._active.get(ident)  # type: ignore[attr-defined]
        name = f"thread {ident}" if thread is None else thread.name
        self.last = time.monotonic()
        self._entries.append((self.last - self._start, name, text))

    def do(self, who: str, call: str, *values: Any) -> None:
        """The kit is about to call the implementation."""
        self.do_text(show_call(f"{who}.{call}", *values))

    def do_text(self, text: str) -> None:
        """The same, in words of one's own."""
        self._done.append(text)
        self.add(text)

    def done(self) -> str:
        """The calls of the kit, in short."""
        runs = [(text, len(list(group))) for text, group in itertools.groupby(list(self._done))]
        texts = [text if times == 1 else f"{text} {times} times" for text, times in runs]
        if len(texts) > _FIRST_DONE + _LAST_DONE:
            texts[_FIRST_DONE:-_LAST_DONE] = ["..."]
        return ", ".join(texts)

    def __str__(self) -> str:
        entries = list(self._entries)
        if not entries:
            return "  calls and signals: none"
        lines = [f"    {at * 1000:9.2f} ms  {name:<14}  {text}" for at, name, text in entries]
        if len(lines) > _HEAD + _TAIL:
            lines[_HEAD:-_TAIL] = [f"    ... {len(lines) - _HEAD - _TAIL} more ..."]
        return "\n".join(["  calls and signals, in order (time, thread, call):", *lines])
