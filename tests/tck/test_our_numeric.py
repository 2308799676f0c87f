"""numpy's and Arrow's sources, and the boundary of records, under the whole kit."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

import rstreams_fast as rf
from tests.tck import NO_LOOK_AHEAD, NO_REGISTRY, add_cases
from tests.tck.test_our_publishers import FAIL_AT, StreamVerification
from tests.tck.test_our_subscribers import StageVerification


class FromArrow(StreamVerification):
    __test__ = True
    not_claimed = (*NO_REGISTRY, *NO_LOOK_AHEAD)

    def create_publisher(self, elements: int) -> rf.Stream[Any]:
        return rf.from_arrow(pa.table({"n": range(elements)}), chunk=1)

    def create_failing_publisher(self, elements: int) -> rf.Stream[Any]:
        def batches() -> Iterator[Any]:
            for n in range(elements):
                yield pa.RecordBatch.from_pydict({"n": [n]})
            raise ValueError(FAIL_AT)

        schema = pa.schema([("n", pa.int64())])
        return rf.from_arrow(pa.RecordBatchReader.from_batches(schema, batches()))


class Boxed:
    """Elements behind their numbers, which records can be. Several subscribers share one."""

    def __init__(self) -> None:
        self._elements: list[Any] = []
        self._lock = threading.Lock()

    def number(self, element: Any) -> Any:
        with self._lock:
            self._elements.append(element)
            return np.array([len(self._elements) - 1])

    def element(self, number: Any) -> Any:
        return self._elements[int(number[0])]


class PublishRecordsOn(StreamVerification):
    __test__ = True

    def stages(self, stream: rf.Stream[Any]) -> rf.Stream[Any]:
        boxed = Boxed()
        return (
            stream.map(boxed.number)
            .publish_records_on("i8", capacity=4, chunk=1)
            .map(boxed.element)
        )


class PublishRecordsOnWithLargeArrays(StreamVerification):
    """Each array is more than there is room for."""

    __test__ = True

    def create_publisher(self, elements: int) -> rf.Stream[Any]:
        array = np.arange(elements)
        return rf.from_numpy(array, chunk=7).publish_records_on("i8", capacity=3, chunk=1)


class PublishRecordsOnAbove(StageVerification):
    __test__ = True

    def stages(self, stream: rf.Stream[Any]) -> rf.Stream[Any]:
        boxed = Boxed()
        return (
            stream.map(boxed.number).publish_records_on("i8", "caller", chunk=1).map(boxed.element)
        )


add_cases(
    globals(),
    StreamVerification,
    "create_publisher",
    FromNumpy=lambda _, elements: rf.from_numpy(np.arange(elements), chunk=1),
)
