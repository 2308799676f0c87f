"""Attributes, such as ``depth``, that an operator's subscriber gets from the subscriber below."""

from __future__ import annotations

from typing import Protocol, TypeGuard

from rstreams_fast.runtime.executors import Trampoline
from rstreams_fast.runtime.turns import Turns
from rstreams_fast.streams.engine.custody import Custody
from rstreams_fast.streams.engine.not_picklable import is_internal, not_picklable

__all__ = ["Chained", "Link", "drop", "take_over_attributes"]


class Chained(Protocol):
    """An internal subscriber that passes signals on to another subscriber, the one below."""

    #: ``depth``: the number of internal subscribers from this subscriber (included) down to the
    #: nearest trampoline, or to the end of the chain. The calls of their ``on_next`` nest. A
    #: trampoline ends the nesting, because it queues calls.
    depth: int
    #: ``trampoline``: the queue of calls of the nearest trampoline below, or ``None``. A trampoline
    #: is a boundary that queues calls, so that the calls do not nest.
    trampoline: Trampoline | None
    #: ``custody``: the record of undelivered elements for the nearest ``on_discard`` below, or
    #: ``None``. The hook of ``on_discard`` gets the elements that are dropped.
    custody: Custody | None
    #: ``turns``: limits how long work may occupy the event loop of the consumer below. ``None``
    #: means that there is no limit.
    turns: Turns | None


class Link:
    """A base class of operators' subscribers with the attributes of ``Chained``, such as ``depth``.

    Subscribers that derive from ``Drain`` have these attributes, too, and do not need this class.
    """

    __slots__ = ("__weakref__", "custody", "depth", "trampoline", "turns")

    __reduce__ = not_picklable

    custody: Custody | None
    depth: int
    trampoline: Trampoline | None
    turns: Turns | None


def take_over_attributes(chained: Chained, below: object) -> None:
    """Set the attributes of ``chained`` that the protocol ``Chained`` declares, such as ``depth``.

    ``below`` is the subscriber to which ``chained`` signals. The values depend on the attributes of
    ``below``. If ``below`` is from outside this package, the attributes get default values.
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
    """Tell ``subscriber`` that it will get no more signals, not even a terminal signal.

    This happens when ``subscriber`` has cancelled, or when ``subscriber`` or a subscriber below it
    has raised. Subscribers that must react to this, such as that of ``do_finally``, have a method
    ``dropped``.
    """
    dropped = getattr(subscriber, "dropped", None) if is_internal(subscriber) else None
    if dropped is not None:
        dropped()


def _is_chained(subscriber: object) -> TypeGuard[Chained]:
    return is_internal(subscriber) and hasattr(subscriber, "depth")
