"""``concat``: subscribes to each publisher when the previous publisher has completed."""

from __future__ import annotations

from typing import Any

from rstreams_fast.api import Publisher, Subscriber
from rstreams_fast.streams.engine.arbiter import Concatenation, SubscriptionArbiter
from rstreams_fast.streams.engine.assembly import PublisherSource
from rstreams_fast.streams.operators.merge import check_publishers, flattened

__all__ = ["concat_source"]


def concat_source(publishers: tuple[Publisher[Any], ...]) -> PublisherSource:
    """Check the publishers of ``rstreams_fast.concat``, and return the concatenated source.

    The caller must pass at least one publisher.
    """
    check_publishers("concat", publishers)
    concatenated = _Concat(tuple(flattened(publishers, lambda inside: isinstance(inside, _Concat))))
    return PublisherSource(
        concatenated, concatenated.describe(), trusted=True, inside=concatenated.publishers
    )


class _Concat(Concatenation):
    def subscribe(self, subscriber: Subscriber[Any], /) -> None:
        SubscriptionArbiter(subscriber, self).start()

    def describe(self) -> str:
        return f"concat of {len(self.publishers)} publishers: holds no elements"
