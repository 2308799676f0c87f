"""Marks the classes whose objects cannot be pickled: subscriptions, runs, live subscribers."""

from __future__ import annotations

from typing import NoReturn

__all__ = ["is_internal", "not_picklable"]


def not_picklable(self: object) -> NoReturn:
    """Raise a ``TypeError``. Used as the ``__reduce__`` of classes that cannot be pickled."""
    raise TypeError(
        f"{type(self).__name__} is live and cannot be pickled: it belongs to the process and "
        "the threads that run it; pickle the Stream, and subscribe to it where it is to run"
    )


def is_internal(thing: object) -> bool:
    """Return whether ``thing`` is a subscriber or subscription of this package.

    Such an object keeps the rules of Reactive Streams, so its callers need fewer checks.
    """
    return type(thing).__reduce__ is not_picklable
