"""Makes objects that belong to a running stream, such as subscriptions, impossible to pickle."""

from __future__ import annotations

from collections import deque
from typing import Final, NoReturn

__all__ = ["is_internal", "is_own", "not_picklable"]

_STREAMS: Final = f"{__name__.partition('.engine.')[0]}."


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


def is_own(thing: object) -> bool:
    """Return whether a class, function or method belongs to ``rstreams_fast.streams``.

    The subscribers of the test kits, for example, are not: they raise on purpose.

    Also true for ``append`` of a list, which this package uses as the ``on_next`` of subscribers.
    """
    module = getattr(thing, "__module__", None)
    if module is None:
        return isinstance(getattr(thing, "__self__", None), (list, deque))
    return str(module).startswith(_STREAMS)
