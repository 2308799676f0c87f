"""Passes the output batches of a stage from the loop's thread to the main thread, by a ring."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from rstreams_fast.calls.pump import ResultSink
from rstreams_fast.core import CallWindow, SpscRing
from rstreams_fast.spark.worker.partition import Output

__all__ = ["OUTPUT_BATCHES", "OutputRing", "OutputSink"]

OUTPUT_BATCHES: Final = 4
"""The capacity of the ring between the loop's thread and the main thread, in output batches."""


class OutputSink(ResultSink, Protocol):
    """Makes output batches from the results of calls. Only the loop's thread calls the methods."""

    @property
    def outputs(self) -> deque[Output]:
        """The output batches that are complete, and not in the ring to the main thread yet."""

    @property
    def can_flush(self) -> bool:
        """Whether ``flush`` would append a batch to ``outputs``."""

    def flush(self) -> None:
        """Append a smaller batch to ``outputs``, made of the results that wait for a full batch."""

    def check_end(self) -> None:
        """Raise an error if an input row has no output row. Called at the end of the stage."""


class OutputRing:
    """Passes output batches from the event loop's thread to the main thread, through a ring.

    The ``sink`` makes these batches from the results of the user's function. While the ring is
    full, ``take`` does not let the sink take further results, and returns 0.
    """

    def __init__(self, sink: OutputSink, on_room: Callable[[], None]) -> None:
        """``on_room`` is called on the main thread when a full ring has room for a batch again."""
        self._sink = sink
        self._on_room = on_room
        self._ring = SpscRing(OUTPUT_BATCHES)
        self._waits_for_room = False
        """Whether the loop's thread found the ring full. If so, ``get`` calls ``on_room``."""
        self.expect: Final = sink.expect
        self.check_end: Final = sink.check_end
        self.close: Final = self._ring.close

    def get(self, timeout: float | None) -> Output:
        """Wait for the next output batch and return it. Only the main thread calls this method."""
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
        """Whether output batches of the sink wait because the ring is full."""
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
        """Move the sink's output batches to the ring; return whether all of them had room."""
        outputs = self._sink.outputs
        while outputs:
            if not self._ring.offer(outputs[0]):
                self._waits_for_room = True
                # Try again. If the main thread took a batch before ``_waits_for_room`` was set, it
                # did not call ``on_room``.
                if not self._ring.offer(outputs[0]):
                    return False
                self._waits_for_room = False
            outputs.popleft()
        return True
