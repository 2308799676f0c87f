"""The context of ``subscribe``, in which other threads work: with the loop of the program in it.

Nothing here imports asyncio: a program that has no loop never loads it.
"""

from __future__ import annotations

import threading
from contextvars import Context, ContextVar, copy_context
from typing import TYPE_CHECKING, Final

from rstreams_fast.runtime.parking import running_loop

if TYPE_CHECKING:
    import asyncio

__all__ = ["HERE", "context_of_subscribe", "loop_of_program"]

HERE: Final = threading.local()
"""``private``: a weak reference to the private loop that runs in this thread, if one does."""

_loop: Final[ContextVar[asyncio.AbstractEventLoop]] = ContextVar("loop_of_program")


def context_of_subscribe() -> Context:
    """Return a copy of the context, in which other threads find the loop that runs here.

    So what is subscribed to later, on another thread, has its calls on the loop of the program.
    """
    context = copy_context()
    loop = running_loop()
    if loop is not None and not hasattr(HERE, "private"):
        context.run(_loop.set, loop)
    return context


def loop_of_program() -> asyncio.AbstractEventLoop | None:
    """Return the loop that runs here, or ran where the outermost stream was subscribed to."""
    loop = running_loop() or _loop.get(None)
    return loop if loop is not None and loop.is_running() else None
