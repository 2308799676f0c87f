"""The attributes that a subscriber takes from the subscriber below it, such as ``custody``."""

from __future__ import annotations

from typing import Protocol, TypeGuard

from rstreams_fast.runtime.executors import Trampoline
from rstreams_fast.runtime.turns import Turns
from rstreams_fast.streams.engine.custody import Custody
from rstreams_fast.streams.engine.not_picklable import is_internal, not_picklable

__all__ = ["Chained", "Link", "drop", "take_over_attributes"]


class Chained(Protocol):
    """A subscriber of this package that passes signals on to another subscriber."""

    #: How many internal subscribers are below, down to the nearest trampoline (which ends the
    #: nesting of calls). One call of ``on_next`` here leads to that many nested calls.
    depth: int
    #: The queue of calls of the nearest trampoline below. A trampoline is a boundary that queues
    #: calls, so that they do not nest deeper.
    trampoline: Trampoline | None
    #: The record of undelivered elements for the ``on_discard`` below, whose hook gets dropped
    #: elements. ``None`` if no ``on_discard`` is below.
    custody: Custody | None
    #: Limits how long work may occupy the event loop, if the consumer below runs on a loop.
    turns: Turns | None


class Link:
    """The base of internal subscribers that are no ``Drain``. Has the attributes of ``Chained``."""

    __slots__ = ("__weakref__", "custody", "depth", "trampoline", "turns")

    __reduce__ = not_picklable

    custody: Custody | None
    depth: int
    trampoline: Trampoline | None
    turns: Turns | None


def take_over_attributes(chained: Chained, below: object) -> None:
    """Set the attributes of ``chained`` from the attributes of its subscriber ``below``.

    If ``below`` is a subscriber from outside this package, the attributes get default values.
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
    """Tell ``subscriber`` that no signal will come, not even a terminal signal.

    The reason: ``subscriber`` has cancelled, or a subscriber below it has raised. Only subscribers
    that must act on this have a method ``dropped``: for example, the subscriber of ``do_finally``.
    """
    dropped = getattr(subscriber, "dropped", None) if is_internal(subscriber) else None
    if dropped is not None:
        dropped()


def _is_chained(subscriber: object) -> TypeGuard[Chained]:
    return is_internal(subscriber) and hasattr(subscriber, "depth")
