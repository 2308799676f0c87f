"""What a subscriber inherits from the subscriber below it: a chain of them nests its calls."""

from __future__ import annotations

from typing import Protocol, TypeGuard

from rstreams_fast.runtime.executors import Trampoline
from rstreams_fast.runtime.turns import Turns
from rstreams_fast.streams.engine.custody import Custody
from rstreams_fast.streams.engine.not_picklable import is_internal

__all__ = ["Chained", "drop", "stand_on"]


class Chained(Protocol):
    """A subscriber of this package that passes signals on to another subscriber."""

    #: How many subscribers it stands on, counted from the last trampoline or from the ground.
    depth: int
    #: Where its calls stop nesting; ``None``: nowhere yet.
    trampoline: Trampoline | None
    #: The scope of an ``on_discard`` below it, which answers for the elements that it drops.
    custody: Custody | None
    #: The turns of the caller below, where that is on an event loop.
    turns: Turns | None


def stand_on(chained: Chained, below: object) -> None:
    """Take over what ``chained`` inherits from its subscriber ``below``.

    A subscriber that is not of this package is the ground.
    """
    chained.depth = 1
    chained.trampoline = None
    chained.custody = None
    chained.turns = getattr(below, "turns", None) if is_internal(below) else None
    if _is_chained(below):
        chained.custody = below.custody
        chained.depth += below.depth
        chained.trampoline = below.trampoline


def drop(subscriber: object) -> None:
    """Tell a subscriber that no signal will come, not even a terminal one.

    It has cancelled, or a subscriber below it has raised. Only what must act on this, such as
    ``do_finally``, has a method ``dropped``.
    """
    dropped = getattr(subscriber, "dropped", None) if is_internal(subscriber) else None
    if dropped is not None:
        dropped()


def _is_chained(subscriber: object) -> TypeGuard[Chained]:
    return is_internal(subscriber) and hasattr(subscriber, "depth")
