"""Makes Spark's accumulators and broadcast variables thread-safe in a Python worker."""

from __future__ import annotations

import functools
import threading
from typing import Any

__all__ = ["make_shared_variables_thread_safe"]


@functools.cache
def make_shared_variables_thread_safe() -> None:
    """Put a lock around ``Accumulator.add``, and another around the loading of ``Broadcast.value``.

    This function replaces methods of PySpark's classes, so call it only in Spark's workers.
    """
    from pyspark import Broadcast
    from pyspark.accumulators import Accumulator

    lock, add = threading.RLock(), Accumulator.add
    broadcast: Any = Broadcast
    loading, load = threading.RLock(), broadcast.value.fget

    @functools.wraps(add)
    def add_with_lock(self: Any, term: Any) -> None:
        with lock:
            add(self, term)

    @functools.wraps(load)
    def load_with_lock(self: Any) -> Any:
        if not hasattr(self, "_value"):
            with loading:
                return load(self)
        return self._value

    Accumulator.add = add_with_lock  # type: ignore[method-assign]
    broadcast.value = property(load_with_lock)
