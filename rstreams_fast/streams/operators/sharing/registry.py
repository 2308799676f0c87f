"""The registry of a multicast's current subscribers: nobody may subscribe twice (§1.10).

Two subscribers are the same if they are the same object. They are also the same if they have the
same type and the same hash, and each equals the other by ``==``. If ``__hash__`` or ``__eq__``
raises, the subscribers are different. These methods are user code, and are never called under a
lock.
"""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

from rstreams_fast.streams.operators.sharing.deferred import DeferredWork

__all__ = ["Entry", "Registry"]

S = TypeVar("S")


class Entry(NamedTuple, Generic[S]):
    """A subscriber, its hash if it has one, and its subscription."""

    subscriber: object
    hash: int | None
    subscription: S


class Registry(Generic[S]):
    """The current subscribers of a publisher. Any thread may call any method."""

    def __init__(self) -> None:
        self._deferred = DeferredWork()
        self._by_identity: dict[int, Entry[S]] = {}
        self._by_hash: dict[int, list[Entry[S]]] = {}

    def claim(self, subscriber: object, subscription: S) -> Entry[S] | None:
        """Add ``subscriber``, and return ``None``.

        If the registry already contains the same or an equal subscriber, return its entry instead.
        """
        entry = Entry(subscriber, _hash(subscriber), subscription)
        compared: list[S] = []
        while True:
            others = self._deferred.enter(self._enter, entry, compared)
            if isinstance(others, Entry):
                return others
            if not others:
                return None
            for other in others:
                if _equal(subscriber, other.subscriber):
                    return other
                compared.append(other.subscription)
            # Call ``_enter`` again. It adds the subscriber, or finds others to compare, which other
            # threads have added during the calls of ``_equal``: no lock is held then.

    def _enter(self, entry: Entry[S], compared: list[S]) -> Entry[S] | list[Entry[S]]:
        """Add ``entry``, unless its subscriber must first be compared with other subscribers.

        Return an ``Entry`` if the registry already contains the same subscriber object. Return an
        empty list if ``entry`` was added. Otherwise return the entries with the same hash, without
        those whose subscriptions are in ``compared``. The caller must compare their subscribers by
        ``==``, add their subscriptions to ``compared``, and call ``_enter`` again. ``_enter``
        itself cannot compare: it is called under the registry's lock, and ``==`` is user code.
        """
        identity = id(entry.subscriber)
        if (there := self._by_identity.get(identity)) is not None:
            return there
        namesakes = [] if entry.hash is None else self._by_hash.get(entry.hash, [])
        others = [one for one in namesakes if one.subscription not in compared]
        if not others:
            self._by_identity[identity] = entry
            if entry.hash is not None:
                self._by_hash.setdefault(entry.hash, []).append(entry)
        return others

    def release(self, identity: int, subscription: S) -> None:
        """Remove the entry of a subscriber, unless the entry belongs to another subscription.

        ``identity`` is the ``id()`` of the subscriber.
        """
        if not self._deferred.defer(self.release, identity, subscription):
            self._deferred.enter(self._forget, identity, subscription)

    def _forget(self, identity: int, subscription: S) -> None:
        """Do the work of ``release``. The caller holds the registry's lock."""
        entry = self._by_identity.get(identity)
        if entry is None or entry.subscription is not subscription:
            return
        self._deferred.release(entry)
        del self._by_identity[identity]
        if entry.hash is not None:
            left = [one for one in self._by_hash[entry.hash] if one is not entry]
            if left:
                self._by_hash[entry.hash] = left
            else:
                del self._by_hash[entry.hash]


def _hash(subscriber: object) -> int | None:
    try:
        return hash(subscriber)
    except Exception:  # no hash, or __hash__ raised: compare the subscriber by identity only
        return None


def _equal(one: object, other: object) -> bool:
    if type(one) is not type(other):
        return False
    try:
        return (one == other) is True and (other == one) is True
    except Exception:  # __eq__ raised: the subscribers count as different
        return False
