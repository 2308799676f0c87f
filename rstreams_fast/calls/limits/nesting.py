"""Refuses a call under a limit if the calling function already runs under this limit.

If every call with a permit waited for a second permit, all would wait for ever. This can happen
only under a limit with ``concurrency``. Two limits of the same name share their numbers, so the
``concurrency`` of either may apply to both. The ``concurrency`` of a third limit of this name may
apply, too, but is not known here: then the calls do wait.
"""

from __future__ import annotations

import contextlib
from contextvars import ContextVar
from typing import Final

from rstreams_fast.calls.errors import StageError
from rstreams_fast.calls.limits.limit import Limit

__all__ = ["begin_holding"]


class Holder:
    """A call under a limit. Nested calls find this object in a context variable."""

    __slots__ = ("_token", "is_over", "label", "limit", "outer")

    def __init__(self, limit: Limit, label: str, outer: Holder | None) -> None:
        self.limit = limit
        self.label = label
        self.outer = outer
        self.is_over = True
        """Whether the call has ended. Tasks that it started may still run in its context."""
        self._token = _holder.set(self)

    def end(self) -> None:
        """Note that the call has ended, and no longer runs under its limit."""
        self.is_over = True
        # reset raises if the garbage collector ends the call in another context. Ignore this error.
        with contextlib.suppress(ValueError):
            _holder.reset(self._token)


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
    outer = each = _holder.get()
    while each is not None:
        same = each.limit.name == limit.name and each.limit.scope == limit.scope
        bounded = limit.concurrency is not None or each.limit.concurrency is not None
        if same and bounded and not each.is_over:
            raise StageError(
                f"a call of {each.label} runs under the limit {limit.name!r}, and calls {label}, "
                "which needs a permit of the same limit: if all permits were held so, the calls "
                "would wait for ever; give one of the two functions a limit of its own"
            )
        each = each.outer
    holder = Holder(limit, label, outer)
    holder.is_over = False  # set last: if a signal handler raises earlier, nothing calls ``end``
    return holder
