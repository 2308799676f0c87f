"""Refuses a call under a limit if the calling function already runs under this limit.

If every call with a permit waited for a second permit, all would wait for ever. This can happen
only under a limit with ``concurrency``. Two limits of the same name share their numbers, so the
``concurrency`` of either may apply to both. The ``concurrency`` of a third limit of this name may
apply, too, but is not known here: then the calls do wait.
"""

from __future__ import annotations

import contextlib
from contextvars import ContextVar
from typing import Final, Self, TypeVar

from rstreams_fast.calls.errors import StageError
from rstreams_fast.calls.limits.limit import Limit

__all__ = ["NestedCall", "begin_holding", "running_call"]


class NestedCall:
    """A call, and the call that makes it."""

    __slots__ = ("is_over", "outer")

    def __init__(self, outer: Self | None) -> None:
        self.outer = outer
        self.is_over = True
        """Whether the call has ended. Tasks that it started may still run in its context."""


_Call = TypeVar("_Call", bound=NestedCall)


def running_call(call: _Call | None) -> _Call | None:
    """Return the innermost call of ``call`` and its outer calls that runs. Drop the ended calls.

    If each call starts the next call in a task, the context of the task still has the ended calls.
    """
    first = each = _skip_ended(call)
    while each is not None:
        each.outer = _skip_ended(each.outer)
        each = each.outer
    return first


def _skip_ended(call: _Call | None) -> _Call | None:
    while call is not None and call.is_over:
        call = call.outer
    return call


class Holder(NestedCall):
    """A call under a limit. Nested calls find this object in a context variable."""

    __slots__ = ("_token", "label", "limit")

    def __init__(self, limit: Limit, label: str, outer: Holder | None) -> None:
        super().__init__(outer)
        self.limit = limit
        self.label = label
        self._token = _holder.set(self)

    def end(self) -> None:
        """Note that the call has ended, and no longer runs under its limit."""
        self.is_over = True
        # reset raises if the garbage collector ends the call in another context. Ignore this error.
        with contextlib.suppress(ValueError):
            _holder.reset(self._token)
        del self._token  # it refers to the holder that was in the context before


_holder: Final[ContextVar[Holder | None]] = ContextVar("holder_of_permits", default=None)


def begin_holding(limit: Limit | None, label: str) -> Holder | None:
    """Record in the current context (``contextvars``) that a call of ``label`` runs under a limit.

    Returns:
        The holder: call its ``end`` when the call ends. ``None`` if there is no limit.

    Raises:
        StageError: A function that makes this call already runs under the same limit, and one of
            the two ``Limit`` objects has ``concurrency``.
    """
    if limit is None:
        return None
    outer = each = running_call(_holder.get())
    while each is not None:
        same = each.limit.name == limit.name and each.limit.scope == limit.scope
        bounded = limit.concurrency is not None or each.limit.concurrency is not None
        if same and bounded:
            raise StageError(
                f"a call of {each.label} runs under the limit {limit.name!r}, and calls {label}, "
                "which needs a permit of the same limit: if all permits were held so, the calls "
                "would wait for ever; give one of the two functions a limit of its own"
            )
        each = each.outer
    holder = Holder(limit, label, outer)
    holder.is_over = False  # set last: if a signal handler raises earlier, nothing calls ``end``
    return holder
