"""Makes objects that belong to a running stream, such as subscriptions, impossible to pickle."""

from __future__ import annotations

from typing import NoReturn

__all__ = ["is_internal", "not_picklable"]


def not_picklable(self: object) -> NoReturn:
    """Raise a ``TypeError``. Classes whose objects cannot be pickled use this as ``__reduce__``."""
    raise TypeError(
        f"{type(self).__name__} is live and cannot be pickled: it belongs to the process and "
        "the threads that run it; pickle the Stream, and subscribe to it where it is to run"
    )


def is_internal(thing: object) -> bool:
    """Return whether ``thing`` is a subscriber or subscription of this package.

    These objects keep the rules of Reactive Streams. So code that uses them needs fewer checks.
    """
    return type(thing).__reduce__ is not_picklable
