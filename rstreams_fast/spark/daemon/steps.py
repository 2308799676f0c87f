"""Runs ``async def`` UDFs under Spark's own (stock) worker code, which supports only sync UDFs.

A ``Step`` replaces each function of the user. If the function returns an awaitable, the step raises
an exception, which ends this run of the stock code. ``drive`` awaits the awaitable and runs the
stock code again. Now the step returns the outcome of the awaitable, and does not call the function.
If the stock code returns the function's result unchanged, the stock code need not run again: the
step returns the awaitable itself, and ``drive`` awaits it.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rstreams_fast.spark.daemon.calls import UdfCall

__all__ = ["Step", "drive"]

Outcome = tuple[Any, BaseException | None]


class _Awaiting(BaseException):
    """The exception by which a ``Step`` passes an awaitable through the stock code to ``drive``."""

    def __init__(self, awaitable: Awaitable[Any]) -> None:
        self.awaitable = awaitable


class _KnownOutcomes(threading.local):
    """The outcomes that ``Step`` objects had in earlier runs of the current call. Each thread has
    its own list.
    """

    known: list[Outcome]
    remaining: Iterator[Outcome]


_outcomes = _KnownOutcomes()


class Step:
    """A wrapper that Spark's code calls in place of the user's function: see the module."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self._fn = fn
        #: Whether the step returns the awaitable itself, and ``drive`` awaits it. This is possible
        #: if the stock code returns the function's result unchanged.
        self.returns_awaitable = False

    def __getattr__(self, name: str) -> Any:
        # Spark's profilers read attributes of the user's function, such as ``__code__``.
        return getattr(self._fn, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.returns_awaitable:
            return self._fn(*args, **kwargs)
        for result, failure in _outcomes.remaining:
            if failure is not None:
                raise failure
            return result
        result = self._fn(*args, **kwargs)
        if inspect.isawaitable(result):
            raise _Awaiting(result)
        _outcomes.known.append((result, None))
        return result


async def drive(call: UdfCall) -> None:
    """Make ``call``. When the awaitable of a ``Step`` is done, run ``call.fn`` again."""
    if call.admission.attention and not await call.admission.may_start_on_loop(call):
        call.abandon()
        return
    known: list[Outcome] = []
    while True:
        _outcomes.known = known
        _outcomes.remaining = iter(tuple(known))
        try:
            result = call.fn(*call.args)
            call.result = await result if inspect.isawaitable(result) else result
            break
        except _Awaiting as awaiting:
            awaitable = awaiting.awaitable
        except BaseException as raised:
            call.failure = raised
            break
        try:
            known.append((await awaitable, None))
        except BaseException as raised:  # a CancelledError is a failure of the call, too
            known.append((None, raised))
    call.end()
