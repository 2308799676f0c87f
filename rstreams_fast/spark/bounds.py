"""``bounded``: the words of ``lookup`` around the function of a UDF."""

from __future__ import annotations

import asyncio
import functools
import os
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Final, ParamSpec, TypeVar, cast

from rstreams_fast.spark.limits import Limit
from rstreams_fast.spark.options import CallOptions, Retry
from rstreams_fast.spark.worker.calls import guarded
from rstreams_fast.spark.worker.counters import Counters
from rstreams_fast.spark.worker.guards.attempts import Attempts, Tries
from rstreams_fast.spark.worker.guards.permits import PermitGate

__all__ = ["bounded"]

P = ParamSpec("P")
R = TypeVar("R")


def bounded(
    *, timeout: float | None = None, retry: Retry | None = None, limit: Limit | None = None
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a UDF's function with a time-out, further attempts and a limit, as ``lookup`` has
    them.

    The decorated function is called as the function is, anywhere: under the drop-in daemon, with
    which an ``async def`` may be a UDF, and in a task of any asyncio loop. After ``RetryAfter`` a
    function is called again, as there.

    ```python
    import rstreams_fast.spark as rs


    @rs.bounded(timeout=2.0, retry=rs.Retry(3), limit=rs.Limit("models", concurrency=32))
    async def model_of(tailnum):
        return tailnum.lower()
    ```

    Args:
        timeout: Seconds for one attempt, then ``TimeoutError``. Default: no limit.
        retry: When a failed call is made again. Default: one attempt. A plain function may have
            ``retry`` alone; its thread waits then.
        limit: A ``Limit`` that the calls share with all of its name. Default: none.

    Returns:
        The decorator.

    Raises:
        TypeError: An argument has the wrong type; the message names it.
        ValueError: An argument has a wrong value, or all are missing.
    """
    if timeout is None and retry is None and limit is None:
        raise ValueError("bounded() needs a timeout, a retry or a limit")

    def decorate(fn: Callable[P, R]) -> Callable[P, R]:
        options = CallOptions(fn, timeout=timeout, retry=retry, limit=limit)
        if limit is not None and not options.is_async:
            raise ValueError(
                f"limit needs an async fn: {options.label} runs on a thread, which has no loop "
                "to wait for a permit on"
            )
        kind: Any = _AsyncFunction if options.is_async else _SyncFunction
        bounds: Callable[P, R] = kind(options)
        return bounds

    return decorate


class _BoundedFunction:
    """A user's function with its options. It travels to the workers as these."""

    def __init__(self, options: CallOptions) -> None:
        functools.update_wrapper(cast(Any, self), options.fn)
        self._options: Final = options
        _tell_of_stock_worker()

    def __reduce__(self) -> Any:
        return type(self), (self._options,)


@functools.cache
def _tell_of_stock_worker() -> None:
    """Say once if Spark has started this worker without the drop-in that its settings ask for."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    asked = sorted(name for name in os.environ if name.startswith("RSTREAMS_FAST_UDF_"))
    if asked and getattr(spec, "name", None) == "pyspark.worker":
        print(
            f"rstreams_fast: {asked[0]} has no effect, calls do not overlap: Spark started this "
            "worker without a daemon (spark.python.use.daemon=false)",
            file=sys.stderr,
        )


Guarded = Callable[..., Awaitable[Any]]


class _AsyncFunction(_BoundedFunction):
    #: The loop that calls it, and the function for that loop with what keeps its gate open.
    _made: tuple[asyncio.AbstractEventLoop, Guarded, Any] | None = None

    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        loop, made = asyncio.get_running_loop(), self._made
        if made is None or made[0] is not loop:
            generator = self._guarded(loop)
            made = self._made = (loop, await anext(generator), generator)
        return await made[1](args, kwargs)

    async def _guarded(self, loop: asyncio.AbstractEventLoop) -> AsyncGenerator[Guarded]:
        # A generator, since the loop closes those when it ends.
        options = self._options
        gate = None if options.limit is None else PermitGate(options.limit, loop)
        try:
            yield guarded(
                lambda args, kwargs: options.fn(*args, **kwargs),
                options,
                loop,
                Counters.of_udfs or Counters(options.label, ""),
                gate,
            )
        finally:
            if gate is not None:
                gate.close()


class _SyncFunction(_BoundedFunction):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        attempts = Attempts(self._options.retry, self._options.label, Counters.of_udfs)
        tries = Tries(attempts)
        attempts.begin()
        while True:
            try:
                return self._options.fn(*args, **kwargs)
            except Exception as error:
                pause = tries.pause_after(error)
                if pause is None:
                    if (wrapper := tries.wrapper_of(error)) is not None:
                        raise wrapper from error
                    raise
            time.sleep(pause)
