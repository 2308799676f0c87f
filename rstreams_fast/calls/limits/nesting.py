"""Refuses a call that waits for a permit of a limit while its caller holds one.

If all holders of permits waited so, they would wait for ever. Only limits of calls at once have
permits to hold.
"""

from __future__ import annotations

import contextlib
from contextvars import ContextVar
from typing import Final

from rstreams_fast.calls.errors import StageError
from rstreams_fast.calls.limits.limit import Limit

__all__ = ["begin_holding"]


class Holder:
    """The function whose calls hold permits in a context, and the holder around it."""

    __slots__ = ("_token", "is_over", "label", "limit", "outer")

    def __init__(self, limit: Limit, label: str, outer: Holder | None) -> None:
        self.limit = limit
        self.label = label
        self.outer = outer
        self.is_over = False
        """A task that the function left behind still has its context."""
        self._token = _holder.set(self)

    def end(self) -> None:
        """Note that the call of the function is over."""
        self.is_over = True
        with contextlib.suppress(ValueError):  # the garbage collector ends it in another context
            _holder.reset(self._token)


_holder: Final[ContextVar[Holder | None]] = ContextVar("holder_of_permits", default=None)


def begin_holding(limit: Limit | None, label: str) -> Holder | None:
    """Note that a call of the function ``label`` holds a permit in the present context.

    Returns:
        The holder, to be ended with the call; ``None`` if the limit has no permits to hold.

    Raises:
        StageError: The calling function holds a permit of the same limit.
    """
    if limit is None or limit.concurrency is None:
        return None
    outer = each = _holder.get()
    while each is not None:
        same = each.limit.name == limit.name and each.limit.scope == limit.scope
        if same and not each.is_over:
            raise StageError(
                f"a call of {each.label} holds a permit of the limit {limit.name!r}, and calls "
                f"{label}, which waits for another: if all holders waited so, they would wait for "
                "ever; give one of the two functions a limit of its own"
            )
        each = each.outer
    return Holder(limit, label, outer)
