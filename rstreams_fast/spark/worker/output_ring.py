"""Passes the output batches of a stage from its loop to the main thread, through a ring."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from rstreams_fast.calls.pump import ResultSink
from rstreams_fast.core import CallWindow, SpscRing
from rstreams_fast.spark.worker.partition import Output

__all__ = ["OUTPUT_BATCHES", "OutputRing", "OutputSink"]

OUTPUT_BATCHES: Final = 4
"""The most output batches in the ring between the loop and the main thread."""


class OutputSink(ResultSink, Protocol):
    """Makes output batches from results. The loop's thread calls its methods."""

    @property
    def outputs(self) -> deque[Output]:
        """Output batches that are ready for the main thread."""

    @property
    def can_flush(self) -> bool:
        """Whether ``flush`` would append to ``outputs``."""

    def flush(self) -> None:
        """Append a batch of the results that wait for more results, even if they are few."""

    def check_end(self) -> None:
        """At the end of the stage, raise an error if an input row has no output row."""


class OutputRing:
    """Puts a sink's output batches into a ring. While the ring is full, ``take`` returns 0."""

    def __init__(self, sink: OutputSink, on_room: Callable[[], None]) -> None:
        """``get`` calls ``on_room``, on the main thread, if the loop waits for room in the ring."""
        self._sink = sink
        self._on_room = on_room
        self._ring = SpscRing(OUTPUT_BATCHES)
        self._waits_for_room = False
        """Whether the loop waits for room in the ring, so that the main thread must wake it."""
        self.expect: Final = sink.expect
        self.check_end: Final = sink.check_end
        self.close: Final = self._ring.close

    def get(self, timeout: float | None) -> Output:
        """Wait for the next output and return it. Only the main thread calls this method."""
        output: Output = self._ring.get(timeout)
        if self._waits_for_room:
            self._waits_for_room = False
            self._on_room()
        return output

    @property
    def most_pending(self) -> int:
        return self._sink.most_pending

    @property
    def room(self) -> int:
        return self._sink.room

    @property
    def is_full(self) -> bool:
        """Whether output batches wait because the ring is full."""
        return bool(self._sink.outputs)

    @property
    def can_flush(self) -> bool:
        return self._sink.can_flush

    def take(self, window: CallWindow, most: int) -> int:
        if not self._move_outputs():
            return 0
        taken = self._sink.take(window, most)
        self._move_outputs()
        return taken

    def flush(self) -> None:
        if self._sink.can_flush and not self._sink.outputs:
            self._sink.flush()
            self._move_outputs()

    def _move_outputs(self) -> bool:
        """Move the sink's outputs to the ring; return ``False`` if the ring has no room for all."""
        outputs = self._sink.outputs
        while outputs:
            if not self._ring.offer(outputs[0]):
                self._waits_for_room = True
                # Try again: the main thread may have made room before ``_waits_for_room`` was set.
                if not self._ring.offer(outputs[0]):
                    return False
                self._waits_for_room = False
            outputs.popleft()
        return True
