"""The peers, used as their documentation does: what one would take instead of ours."""

from __future__ import annotations

import threading
from collections.abc import Callable

from bench.workloads import DEADLINE

__all__ = ["END", "in_threads"]

END = None  # what ends a queue; no element of the workload


def in_threads(*bodies: Callable[[], object]) -> None:
    """Run each in a thread of its own; wait for all; raise what one of them raised."""
    raised: list[BaseException] = []

    def run(body: Callable[[], object]) -> None:
        try:
            body()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=run, args=(body,), daemon=True) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
        if raised:
            raise raised[0]
        if thread.is_alive():
            raise TimeoutError(f"not done within {DEADLINE} s")
