"""Every group that is measured: the primitives by themselves, and what they are used for."""

from __future__ import annotations

from bench.groups.combining import COMBINING
from bench.groups.handover import HANDOVER
from bench.groups.native import NATIVE
from bench.groups.operators import OPERATORS
from bench.groups.python import PYTHON
from bench.groups.queues import QUEUES
from bench.groups.records import RECORDS
from bench.groups.sharing import SHARING
from bench.groups.streams import STREAMS
from bench.measure import Group

__all__ = ["GROUPS"]

GROUPS: list[Group] = [
    *STREAMS,
    *SHARING,
    *COMBINING,
    *OPERATORS,
    *HANDOVER,
    *PYTHON,
    *QUEUES,
    *RECORDS,
    *NATIVE,
]
