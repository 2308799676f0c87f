"""``window(n, skip)`` and ``batch(n, skip)``: windows of ``n`` elements, as streams or as lists.

A new window begins every ``skip`` elements.
"""

from __future__ import annotations

from typing import Any

from rstreams_fast._checks import check_count
from rstreams_fast.api import UNBOUNDED, Publisher, Subscriber
from rstreams_fast.streams.engine.boundary import Boundary
from rstreams_fast.streams.engine.trampoline import OperatorPublisher
from rstreams_fast.streams.operators.divider import Divider
from rstreams_fast.streams.operators.substreams import ToStream

__all__ = ["Window"]


class Window(Boundary):
    """The options of ``Stream.window``, and of ``Stream.batch`` with the argument ``skip``.

    For ``batch``, ``to_stream`` is ``None``: the windows are lists.
    """

    def __init__(self, n: int, skip: int | None, to_stream: ToStream | None) -> None:
        self.name = "batch" if to_stream is None else "window"
        self.n = check_count(f"{self.name}(n): n", n, 1)
        self.skip = self.n if skip is None else check_count(f"{self.name}(skip): skip", skip, 1)
        self.to_stream = to_stream

    def attach(self, upstream: Publisher[Any], /) -> Publisher[Any]:
        return OperatorPublisher(upstream, _subscription, self)

    def describe(self) -> str:
        at_once = -(-self.n // self.skip)
        return (
            f"{self.name}({self.n}, skip={self.skip}): at most {self.n} elements in each, "
            f"{at_once} open at once"
        )


def _subscription(subscriber: Subscriber[Any], options: Window) -> Divider:
    at_once = -(-options.n // options.skip)
    divider = Divider(subscriber, options.describe(), options.n * at_once)
    divider.division = divider.capacity = _ByCount(options)
    return divider


class _ByCount:
    """Puts each element in all open windows. Windows are lists or substreams.

    The number of requested elements depends only on the number of requested windows, not on the
    number of held elements. So a window that nobody reads does not delay other windows.
    """

    __slots__ = ("_n", "_skip", "_to_stream")

    shared = False

    def __init__(self, options: Window) -> None:
        self._n, self._skip = options.n, options.skip
        self._to_stream = options.to_stream

    def room(self, divider: Divider, /) -> int:
        requested = divider.parts_requested.value
        if not requested:
            return 0
        # ``last``: how many elements of upstream come before the last requested window.
        last = (requested - 1) * self._skip
        if divider.takes_no_more:  # downstream has cancelled: only fill the open windows
            opened: list[Any] = list(divider.open)
            last = opened[-1] if opened else -self._n
        return min(last + self._n, UNBOUNDED) - divider.requested

    def detect_stuck(self, divider: Divider, /) -> None:
        """Do nothing: a window that nobody reads does not delay other windows."""

    def take(self, burst: list[Any], divider: Divider, /) -> None:
        """Add ``burst`` to all open windows, in pieces that end where a window begins or ends."""
        n, skip, at = self._n, self._skip, 0
        add = self._add_to_lists if self._to_stream is None else self._add_to_streams
        while at < len(burst):
            number = divider.received
            if number % skip == 0 and not divider.takes_no_more:
                if self._to_stream is None:
                    divider.lists.append([])
                else:
                    divider.open_substream(number, self._to_stream)
            piece = burst[at : at + min(skip - number % skip, (n - number - 1) % skip + 1)]
            at += len(piece)
            divider.received += len(piece)
            add(piece, divider)

    def _add_to_lists(self, piece: list[Any], divider: Divider) -> None:
        lists = divider.lists  # the first list is the oldest, and is full before the others
        for window in lists:
            window += piece
        if lists and len(lists[0]) == self._n:
            divider.made.append(lists.popleft())

    def _add_to_streams(self, piece: list[Any], divider: Divider) -> None:
        for window in list(divider.open.values()):
            divider.push(window, piece)
        # ``full``: the window that now has ``n`` elements. None if its subscriber has cancelled.
        full = divider.open.pop(divider.received - self._n, None)
        if full is not None:
            full.over = True
