"""Runs ``async def`` UDFs under Spark's own (stock) worker code, which knows only plain functions.

A ``Step`` replaces the user's function in that code. If the function returns an awaitable, the step
raises an exception, which ends the stock code. ``drive`` awaits the awaitable, and calls the stock
code again; now the step returns the outcome. In a chain of functions each step returns its earlier
outcome, so no function is called twice. If the stock code returns the result unchanged, the step
returns the awaitable itself, and the stock code runs once.
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
    """The exception that carries an awaitable out of the stock worker's code, to ``drive``."""

    def __init__(self, awaitable: Awaitable[Any]) -> None:
        self.awaitable = awaitable


class _KnownOutcomes(threading.local):
    """For each thread: the outcomes that the steps of its current call had in earlier runs."""

    known: list[Outcome]
    remaining: Iterator[Outcome]


_outcomes = _KnownOutcomes()


class Step:
    """A wrapper that replaces a function of the user in the calls that ``drive`` makes."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self._fn = fn
        #: Whether Spark's code returns the function's result unchanged. Then the step returns the
        #: awaitable itself, and ``drive`` awaits it.
        self.returns_awaitable = False

    def __getattr__(self, name: str) -> Any:
        # Profilers read attributes of the user's function, such as ``__code__``.
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
    """Make ``call``. Run its function again each time that a ``Step`` had to wait."""
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
        except BaseException as raised:  # a cancellation counts as a failure of the call
            known.append((None, raised))
    call.end()
