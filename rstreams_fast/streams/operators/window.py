"""Windows of so many elements, as lists or as streams, a new one every so many elements."""

from __future__ import annotations

from collections import deque
from typing import Any

from rstreams_fast._checks import check_count
from rstreams_fast.api import UNBOUNDED, Publisher, Subscriber
from rstreams_fast.core import DemandCounter
from rstreams_fast.errors import check_request
from rstreams_fast.streams.engine.boundary import Boundary
from rstreams_fast.streams.engine.subscribing import Below
from rstreams_fast.streams.operators.parts import Divider, ToStream

__all__ = ["Window"]


class Window(Boundary):
    """The boundary of ``Stream.window``, or, without ``to_stream``, of ``batch`` with ``skip``."""

    def __init__(self, n: int, skip: int | None, to_stream: ToStream | None) -> None:
        self.name = "batch" if to_stream is None else "window"
        self.n = check_count(f"{self.name}(n): n", n, 1)
        self.skip = self.n if skip is None else check_count(f"{self.name}(skip): skip", skip, 1)
        self.to_stream = to_stream

    def attach(self, upstream: Publisher[Any], /) -> Publisher[Any]:
        return Below(upstream, _Batches if self.to_stream is None else _Windows, self)

    def describe(self) -> str:
        at_once = -(-self.n // self.skip)
        return (
            f"{self.name}({self.n}, skip={self.skip}): at most {self.n} elements in each, "
            f"{at_once} open at once"
        )


class _Batches(Divider):
    """Asks for as many elements as fill all windows that were asked for."""

    __slots__ = ("_n", "_options", "_requested", "_skip", "_windows")

    def __init__(self, subscriber: Subscriber[Any], options: Window) -> None:
        super().__init__(subscriber, options.describe())
        self._options = options
        self._n, self._skip = options.n, options.skip
        self._requested = DemandCounter()
        self._windows: deque[Any] = deque()  # those that are open, the first to be full in front

    def request(self, n: int, /) -> None:
        """Ask for ``n`` more windows (§3.8)."""
        try:
            self._requested.request(check_request(n))
        except Exception as refused:
            self._bad_request(refused)
            return
        super().request(n)

    def _room(self) -> int:
        requested = self._requested.value
        if not requested or self._demand.value < 0:
            return 0
        return min((requested - 1) * self._skip + self._n, UNBOUNDED) - self._asked

    def _most(self) -> int:
        return self._n * -(-self._n // self._skip)

    def _take(self, burst: list[Any]) -> None:
        """In pieces: from where a window begins or is full to where the next is."""
        n, skip, at = self._n, self._skip, 0
        while at < len(burst):
            number = self._came
            if number % skip == 0 and self._demand.value >= 0:
                self._begin_window(number)
            piece = burst[at : at + min(skip - number % skip, (n - number - 1) % skip + 1)]
            at += len(piece)
            self._came += len(piece)
            self._fill_windows(piece, self._came - n)

    def _begin_window(self, _number: int) -> None:
        self._windows.append([])

    def _fill_windows(self, piece: list[Any], _full: int) -> None:
        windows = self._windows
        for window in windows:
            window += piece
        if windows and len(windows[0]) == self._n:
            self._made.append(windows.popleft())

    def _finish_parts(self) -> None:
        while self._windows:
            self._made.append(self._windows.popleft())

    def _drop_references(self) -> None:
        super()._drop_references()
        self._windows = deque()


class _Windows(_Batches):
    __slots__ = ()

    gives_whole_parts = True

    def _begin_window(self, number: int) -> None:
        to_stream = self._options.to_stream
        if to_stream is not None:
            self._made.append(self._new_part(number, to_stream)[1])

    def _fill_windows(self, piece: list[Any], full: int) -> None:
        for part in list(self._open.values()):
            self._push(part, piece)
        ended = self._open.pop(full, None)  # unless it was cancelled
        if ended is not None:
            ended.over = True

    def _finish_parts(self) -> None:
        """All windows have been delivered, or wait for demand."""
