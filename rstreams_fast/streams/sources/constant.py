"""The sources of ``error`` and ``never``, which have no elements."""

from __future__ import annotations

from typing import Any

from rstreams_fast.api import Subscriber
from rstreams_fast.streams.engine.signals import Idle

__all__ = ["FailedPublisher", "NeverPublisher"]


class FailedPublisher:
    def __init__(self, error: BaseException) -> None:
        self._error = error
        # Store the traceback that the error has now. When a subscriber raises the error, Python
        # adds stack frames to the traceback. The next subscriber gets the error without them.
        self._traceback = error.__traceback__

    def subscribe(self, subscriber: Subscriber[Any], /) -> None:
        subscriber.on_subscribe(Idle())
        subscriber.on_error(self._error.with_traceback(self._traceback))


class NeverPublisher:
    def subscribe(self, subscriber: Subscriber[Any], /) -> None:
        subscriber.on_subscribe(Idle())
