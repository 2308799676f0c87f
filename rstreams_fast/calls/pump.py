"""``CallPump``: makes a call for each item of a source, and passes the results to a sink.

The calls overlap in a ``CallWindow``: the pump submits items to it, and the sink takes the results.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

from rstreams_fast.calls.engine import CallEngine
from rstreams_fast.core import CallWindow

__all__ = ["CallPump", "ItemSource", "ResultSink"]

RESULTS_PER_TAKE: Final = 1024
"""The maximum number of results that the sink takes from the ``CallWindow`` in one ``take``."""

WORK_PER_TURN: Final = 4096
"""``move`` returns after about this number of submitted items and results, so that the event loop
can handle its sockets and timers."""


class ItemSource(Protocol):
    """Provides the items of a ``CallPump``. Only the event loop's thread calls the methods."""

    def next(self, rows: int) -> Any | None:
        """Return the next part of the input, which has at most ``rows`` rows.

        ``None``: the next part is not available yet, or the input has ended.
        """


class ResultSink(Protocol):
    """Receives the results of a ``CallPump``. Only the event loop's thread calls the methods."""

    @property
    def most_pending(self) -> int:
        """The maximum number of submitted items whose results the sink has not taken yet."""

    @property
    def room(self) -> int:
        """The maximum number of rows in the next part of the source; 0: request no part now."""

    def expect(self, part: Any, /) -> list[Any]:
        """Prepare for the results of ``part``; return the items for which to make calls."""

    def take(self, window: CallWindow, most: int) -> int:
        """Take up to ``most`` results, or fewer if the output is full; return the number taken."""


class CallPump:
    """Makes a call for each item of a source, and passes the results to a sink.

    Only the event loop's thread may use the pump.
    """

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
        """The number of items that the ``CallWindow`` has accepted."""

    @property
    def is_idle(self) -> bool:
        """Whether no item waits for its call, no call is running, and no result waits."""
        return self._window.pending == 0 and not self._items

    @property
    def waiting_items(self) -> list[Any]:
        """The items that the ``CallWindow`` has not accepted yet."""
        return self._items[self._next_item :]

    def move(self) -> bool:
        """Pass results to the sink and submit items, until neither is possible or a call fails.

        Returns:
            ``True`` if this method has stopped after ``WORK_PER_TURN`` items and results: then the
            caller must call it again in a later step of the loop.
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
        """Submit items while there is room; return their number.

        Return 1 for a part without items, so that ``move`` goes on with the next part.
        """
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
            self._items, self._next_item = [], 0  # the old list would keep all its items alive
        return taken
