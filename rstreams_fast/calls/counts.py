"""What is counted of calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rstreams_fast.calls.retry import RetryAfter

__all__ = ["CallCounts"]


@dataclass(eq=False)
class CallCounts:
    """The counts of a function's calls. Each is written by one thread.

    Attributes:
        stage: The name of the function.
        calls: Calls of the function, each once, however many attempts it took.
        cache_hits: Calls that a ``Cache`` answered.
        journal_hits: Calls that a ``Journal`` answered.
        retries: Further attempts of calls that had failed.
        throttled: Attempts that raised ``RetryAfter``, and were made again.
        timeouts: Attempts that took longer than their time-out.
        concurrency: The bound on calls at once.
    """

    ambient: ClassVar[CallCounts | None] = None
    """Where functions count that are called outside stages; default: nowhere."""

    stage: str = ""
    calls: int = 0
    cache_hits: int = 0
    journal_hits: int = 0
    retries: int = 0
    throttled: int = 0
    timeouts: int = 0
    concurrency: int = 0

    def count_again(self, error: Exception) -> None:
        """Count an attempt that follows the failure ``error``."""
        if isinstance(error, RetryAfter):
            self.throttled += 1
        else:
            self.retries += 1

    def count_timeout(self) -> None:
        """Count an attempt that exceeded its time-out."""
        self.timeouts += 1
