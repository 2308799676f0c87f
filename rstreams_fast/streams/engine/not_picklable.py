"""The mark of objects that live in this process only: a subscription, a run, a live subscriber."""

from __future__ import annotations

from typing import NoReturn

__all__ = ["is_internal", "not_picklable"]


def not_picklable(self: object) -> NoReturn:
    """Raise a ``TypeError``. The ``__reduce__`` of classes whose objects cannot be pickled."""
    raise TypeError(
        f"{type(self).__name__} is live and cannot be pickled: it belongs to the process and "
        "the threads that run it; pickle the Stream, and subscribe to it where it is to run"
    )


def is_internal(thing: object) -> bool:
    """Return whether ``thing`` is a live object of this package, which keeps the specification."""
    return type(thing).__reduce__ is not_picklable
