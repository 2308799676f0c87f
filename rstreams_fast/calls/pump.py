"""``CallPump``: moves items from a source into calls, and their results into a sink."""

from __future__ import annotations

from typing import Any, Final, Protocol

from rstreams_fast.calls.engine import CallEngine
from rstreams_fast.core import CallWindow

__all__ = ["CallPump", "ItemSource", "ResultSink"]

RESULTS_PER_TAKE: Final = 1024
"""The most results that are taken from the window at once."""

WORK_PER_TURN: Final = 4096
"""The most calls and results in one step: then the loop handles its sockets and timers."""


class ItemSource(Protocol):
    """The items that the pump makes calls for. The loop's thread calls its methods."""

    def next(self, rows: int) -> Any | None:
        """Return the next part, of at most ``rows`` rows; ``None``: it is not ready, or the end."""


class ResultSink(Protocol):
    """Receives the results of the calls. The loop's thread calls its methods."""

    @property
    def most_pending(self) -> int:
        """The most running calls, together with the results that the sink has not taken."""

    @property
    def room(self) -> int:
        """The most rows of the next part of the source; 0: request no part now."""

    def expect(self, part: Any, /) -> list[Any]:
        """Prepare for the results of ``part``; return the items to call the function with."""

    def take(self, window: CallWindow, most: int) -> int:
        """Take up to ``most`` results, fewer if the output is blocked; return how many."""


class CallPump:
    """Moves items into calls, and results into a sink. Only the loop's thread uses it."""

    def __init__(
        self,
        engine: CallEngine,
        source: ItemSource,
        sink: ResultSink,
    ) -> None:
        self._engine = engine
        self._window = engine.window
        self._source = source
        self._sink = sink
        self._items: list[Any] = []
        self._next_item = 0
        self.submitted = 0
        """How many items the window has taken."""

    @property
    def is_idle(self) -> bool:
        """Whether the pump has no item, no running call and no result."""
        return self._window.pending == 0 and not self._items

    @property
    def waiting_items(self) -> list[Any]:
        """The items that wait for a call."""
        return self._items[self._next_item :]

    def move(self) -> bool:
        """Move results out and items in, until nothing can move, or a call has failed.

        Returns:
            Whether more can be moved in a later step of the loop.
        """
        window, done = self._window, 0
        while done < WORK_PER_TURN:
            taken = self._sink.take(window, RESULTS_PER_TAKE)
            if window.failure is not None:
                return False
            submitted = self._submit(window)
            done += taken + submitted
            if not taken and not submitted and window.failure is None:
                return False
        return True

    def _submit(self, window: CallWindow) -> int:
        """Submit items while more calls may start; return how many, or 1 if the source advanced."""
        if not self._engine.has_room:
            return 0
        limit = self._sink.most_pending
        if self._next_item == len(self._items):
            if window.pending >= limit:
                return 0
            rows = self._sink.room
            part = self._source.next(rows) if rows else None
            if part is None:
                return 0
            self._items, self._next_item = self._sink.expect(part), 0
            if not self._items:
                return 1
        items, start = self._items, self._next_item
        if limit < window.capacity:
            room = max(limit - window.pending, 0 if window.pending else 1)
            taken = window.submit_many(items[start : start + room])
        else:
            taken = window.submit_many(items, start)
        self._next_item += taken
        self.submitted += taken
        if self._next_item == len(items):
            self._items, self._next_item = [], 0  # the old list would keep all items alive
        return taken
