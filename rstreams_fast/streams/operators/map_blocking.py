"""``map_blocking``: a plain function on a pool of threads or processes, several calls at a time.

``map_async``, each of whose calls waits for a pool: its bounds, its order and its errors hold here.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any

from rstreams_fast._checks import check_sync, describe_callable
from rstreams_fast.runtime.shared_threads import shared_threads
from rstreams_fast.streams.operators.map_async import MapAsync

__all__ = ["MapBlocking"]


class MapBlocking(MapAsync):
    """``fn(element)`` on ``executor`` for each element, up to ``concurrency`` calls at once."""

    operator = "map_blocking"

    def __init__(
        self,
        fn: Callable[[Any], Any],
        executor: Executor | None,
        *,
        concurrency: int | None,
        ordered: bool,
        prefetch: int | None,
    ) -> None:
        check_sync("map_blocking", "fn", fn, "; make the calls with map_async")
        if executor is not None and not isinstance(executor, Executor):
            raise TypeError(
                "map_blocking(executor): executor must be a concurrent.futures.Executor or None, "
                f"got {type(executor).__name__}"
            )
        if concurrency is None:
            concurrency = os.cpu_count() or 1
        submit = _submit_shared if executor is None else executor.submit
        work = partial(_call, fn)

        async def call(element: Any) -> Any:
            return await asyncio.wrap_future(submit(work, element))

        super().__init__(call, concurrency=concurrency, ordered=ordered, prefetch=prefetch)
        self.name = describe_callable(fn)
        self.where = "shared threads" if executor is None else type(executor).__name__


def _call(fn: Callable[[Any], Any], element: Any) -> Any:
    # Of this module, so that processes can import it.
    try:
        return fn(element)
    except StopIteration as stop:  # no future can carry it
        raise RuntimeError(f"{describe_callable(fn)} raised StopIteration") from stop


def _submit_shared(work: Callable[[Any], Any], element: Any) -> Future[Any]:
    future: Future[Any] = Future()

    def run() -> None:
        if future.set_running_or_notify_cancel():
            try:
                result = work(element)
            except BaseException as raised:
                future.set_exception(raised)
            else:
                future.set_result(result)

    shared_threads().execute(run, future.set_exception)
    return future
