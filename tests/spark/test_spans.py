"""The spans of calls, as a collector gets them."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

import rstreams_fast.spark as rs
from tests.helpers import DEADLINE
from tests.spark.collector import Collector, attributes, collecting
from tests.spark.stages import made, outputs, parts, values

ROOT = "rstreams_fast"


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as made:
        yield made


def all_spans(collector: Collector, **words: Any) -> rs.OpenTelemetry:
    return rs.OpenTelemetry(collector.url, **{"sample": 1, "most_spans": 1e6, **words})


def calls(collector: Collector) -> list[dict[str, Any]]:
    """Return the attributes of the spans of calls; all have the same parent."""
    spans = collector.spans
    (root,) = [span for span in spans if span.name == ROOT]
    found = [span for span in spans if span.name != ROOT]
    for span in found:
        assert (span.trace_id, span.parent_span_id) == (root.trace_id, root.span_id)
        assert root.start_time_unix_nano <= span.start_time_unix_nano <= span.end_time_unix_nano
        failed = attributes(span)["rstreams.outcome"] != "ok"
        assert (span.status.code == 2) is failed  # STATUS_CODE_ERROR
        seconds = (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9
        waits = sum(v for name, v in attributes(span).items() if name.startswith("rstreams.wait."))
        assert 0 <= waits <= seconds + 0.002  # a timer may be so much early
        assert seconds < DEADLINE
    assert len({span.span_id for span in spans}) == len(spans)
    return [{**attributes(span), "events": [e.name for e in span.events]} for span in found]


LIMIT = {"limit": rs.Limit("spans", concurrency=2)}
RETRY = {"retry": rs.Retry(1, backoff=0.001, on=(ConnectionError,))}
WORDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "limit": LIMIT,
    "retry": RETRY,
    "both": {**LIMIT, **RETRY, "timeout": DEADLINE},
    "units": {
        **RETRY,
        "limit": rs.Limit(
            "weighed", concurrency=2, units={"t": rs.per_second(1e6)}, weigh=lambda k: {"t": 1}
        ),
    },
    "cache": {"cache": rs.Cache(1000)},
    "cache and retry": {"cache": rs.Cache(1000), **RETRY},
    "lists": {"batch": 3, **RETRY},
    "column": {**RETRY, "on_failure": "column"},
    "threads": {**RETRY, **LIMIT},
}


@pytest.mark.parametrize("kind", WORDS)
def test_each_call_has_a_span_that_tells_its_attempts_waits_and_outcome(
    collector: Collector, kind: str
) -> None:
    words, seen = {"on_failure": "null", **WORDS[kind]}, Counter[int]()

    def answer(k: int) -> int:
        seen[k] += 1
        trace.get_current_span().set_attribute("k", k)
        if k == 5:
            raise KeyError(k)
        if k % 10 == 3 and seen[k] == 1:
            raise ConnectionError(k)
        if k % 10 == 4 and seen[k] == 1:
            raise rs.RetryAfter(0.01)
        return k

    async def ask(k: Any) -> Any:
        await asyncio.sleep(0)
        return [answer(each) for each in k] if kind == "lists" else answer(k)

    fn = answer if kind == "threads" else ask
    with rs.Metrics(telemetry=all_spans(collector)) as metrics:
        stage = made(rs.lookup, fn, pa.int64(), concurrency=4, metrics=metrics, **words)
        values(stage, range(20))
        total = metrics.totals()
    found = calls(collector)
    assert len(found) == total.calls
    assert sum(each["rstreams.attempts"] for each in found) == total.attempts
    assert {each["rstreams.stage"] for each in found} == {total.stage}
    outcomes = Counter(each["rstreams.outcome"] for each in found)
    types = Counter(each["error.type"] for each in found if "error.type" in each)
    assert outcomes["error"] == types.total() == len(found) - outcomes["ok"] > 0
    if kind == "lists":  # a list fails as a whole here
        return
    assert total.attempts == sum(seen.values())
    assert types == total.failure_types
    by_key = {each["k"]: each for each in found}
    assert by_key.keys() == set(range(20))
    assert by_key[0]["events"] == []
    for k in (4, 14):
        assert by_key[k]["rstreams.attempts"] == 2
        assert by_key[k]["events"] == ["attempt failed"]
        assert by_key[k]["rstreams.wait.service"] >= 0.01
    retries = "retry" in words
    for k in (3, 13):
        assert by_key[k]["rstreams.outcome"] == ("ok" if retries else "error")
        assert by_key[k]["rstreams.attempts"] == 1 + retries
        assert ("rstreams.wait.retry" in by_key[k]) is retries
    if kind == "limit":
        assert any("rstreams.wait.limit" in each for each in found)


def test_time_outs_refusals_and_batches_have_spans(collector: Collector) -> None:
    async def hang(k: int) -> int:
        await asyncio.Event().wait()
        return k

    async def fail(k: int) -> int:
        raise ConnectionError(k)

    async def mapped(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch

    with rs.Metrics(telemetry=all_spans(collector)) as metrics:
        words = {"metrics": metrics, "on_failure": "null"}
        values(made(rs.lookup, hang, pa.int64(), timeout=0.01, **words), [1])
        values(made(rs.lookup, hang, pa.int64(), deadline=0.01, **words), [1])
        circuit = rs.Circuit(failures=2, reset=DEADLINE)
        values(made(rs.lookup, fail, pa.int64(), circuit=circuit, concurrency=1, **words), range(4))
        outputs(rs.map_batches(mapped, parts(1, 1)[0].schema, metrics=metrics), parts(9, 3))
    found = Counter(
        (each["rstreams.stage"].rpartition(".")[2], each["rstreams.outcome"])
        for each in calls(collector)
    )
    assert found["hang", "timeout"] == 2
    assert found["fail", "error"] + found["fail", "refused"] == 4
    assert found["fail", "refused"] >= 1
    assert found["mapped", "ok"] == 3
    refused = [each for each in calls(collector) if each["rstreams.outcome"] == "refused"]
    assert {each["rstreams.attempts"] for each in refused} == {0}


def test_calls_of_a_plain_function_of_batches_have_spans(collector: Collector) -> None:
    asked = Counter[int]()

    def mapped(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        k = batch["k"][0].as_py()
        asked[k] += 1
        trace.get_current_span().set_attribute("k", k)
        if k == 3 and asked[k] == 1:
            raise rs.RetryAfter(0.001)
        yield batch
        if k == 6:
            raise KeyError(k)

    with rs.Metrics(telemetry=all_spans(collector)) as metrics:
        stage = rs.map_batches(mapped, parts(1, 1)[0].schema, metrics=metrics)
        with pytest.raises(KeyError, match="6"):
            outputs(stage, parts(9, 3))
    found = {each["k"]: each for each in calls(collector)}
    assert {k: each["rstreams.outcome"] for k, each in found.items()} == {
        0: "ok",
        3: "ok",
        6: "error",
    }
    assert [found[k]["rstreams.attempts"] for k in (0, 3, 6)] == [1, 2, 1]
    assert found[3]["events"] == ["attempt failed"]
    assert found[6]["error.type"] == "KeyError"


def test_a_call_on_a_thread_whose_rows_nobody_takes_is_cancelled(collector: Collector) -> None:
    def mapped(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        while True:
            yield batch

    with rs.Metrics(telemetry=all_spans(collector)) as metrics:
        stage = rs.map_batches(mapped, parts(1, 1)[0].schema, metrics=metrics)
        rows: Any = stage.as_map_fn()(iter(parts(1, 1)))
        next(rows)
        rows.close()
    assert [each["rstreams.outcome"] for each in calls(collector)] == ["cancelled"]


def test_spans_of_clients_nest_in_the_call_and_calls_in_the_span_of_the_driver(
    collector: Collector,
) -> None:
    exported = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exported))
    tracer = provider.get_tracer("a client")

    async def ask(k: int) -> int:
        with tracer.start_as_current_span("request"):
            await asyncio.sleep(0.001)
        return k

    with tracer.start_as_current_span("nightly") as nightly:
        metrics = rs.Metrics(telemetry=all_spans(collector))
    policy = rs.Policy(limit=rs.Limit("nested", concurrency=4))
    values(rs.lookup(policy(ask), pa.int64(), metrics=metrics), range(50))
    (name,) = metrics.stages()
    metrics.cleanup()
    assert not trace.get_current_span().get_span_context().is_valid
    spans = {span.span_id.hex(): span for span in collector.spans}
    assert {span.name for span in spans.values()} == {name}  # no parent of our own
    requests = [span for span in exported.get_finished_spans() if span.name == "request"]
    assert len(requests) == len(spans) == 50
    assert {f"{span.parent.span_id:016x}" for span in requests if span.parent} == spans.keys()
    outer = nightly.get_span_context()
    for span in spans.values():
        assert span.parent_span_id.hex() == f"{outer.span_id:016x}"
        assert span.trace_id.hex() == f"{outer.trace_id:032x}"


class Silent:
    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_attributes_that_cannot_be_written_fail_no_job(collector: Collector) -> None:
    ring: list[Any] = []
    ring.append(ring)
    odd: list[Any] = [{("a", 1): 2}, ring, Silent(), {"a": 1}]

    async def ask(k: int) -> int:
        trace.get_current_span().set_attribute("odd", odd[k])
        return k

    with rs.Metrics(telemetry=all_spans(collector)) as metrics:
        assert values(rs.lookup(ask, pa.int64(), metrics=metrics), range(4)) == [0, 1, 2, 3]
    assert [each["rstreams.outcome"] for each in calls(collector)] == ["ok", "ok"]


@pytest.mark.parametrize("words", [{"sample": 0}, {}], ids=["sample=0", "parent not sampled"])
def test_no_call_has_a_span_where_none_is_wanted(
    collector: Collector, words: dict[str, Any]
) -> None:
    async def ask(k: int) -> int:
        assert not trace.get_current_span().is_recording()
        return k

    parent = SpanContext(7, 7, is_remote=True, trace_flags=TraceFlags(0))
    context = trace.set_span_in_context(NonRecordingSpan(parent))
    from opentelemetry.context import attach, detach

    token = None if words else attach(context)
    metrics = rs.Metrics(telemetry=all_spans(collector, **words))
    if token is not None:
        detach(token)
    with metrics:
        values(rs.lookup(ask, pa.int64(), metrics=metrics), range(50))
    assert collector.of("/v1/metrics")
    assert not collector.of("/v1/traces")


def test_a_share_of_the_calls_has_spans_and_no_more_than_so_many_a_second(
    collector: Collector,
) -> None:
    async def ask(k: int) -> int:
        return k

    def found(**words: Any) -> int:
        before = len(collector.spans)
        with rs.Metrics(telemetry=all_spans(collector, **words)) as metrics:
            for policy in (rs.Policy(), rs.Policy(retry=rs.Retry(1))):
                values(rs.lookup(policy(ask), pa.int64(), metrics=metrics), range(400))
        return len(collector.spans) - before - 1

    assert found() == 800
    assert 95 <= found(sample=1 / 8) <= 105
    assert 550 <= found(sample=0.7) <= 570
    assert found(sample=5e-324) <= 0
    begun = time.monotonic()
    few = found(most_spans=10)
    assert 10 <= few < 2 * 10 * (2 + time.monotonic() - begun)


@pytest.mark.slow
@pytest.mark.spark
def test_workers_that_are_killed_leave_their_spans_and_counters(
    collector: Collector, run_script: Callable[..., str], tmp_path: Path
) -> None:
    """The service's own count of attempts is that of the collector."""
    printed = run_script(
        f"""
import asyncio, json, os, signal
from pathlib import Path
import rstreams_fast.spark as rs
from opentelemetry import trace
from tests.spark.conftest import session

log, killed = Path({str(tmp_path / "log")!r}), Path({str(tmp_path / "killed")!r})
spark = session("local[2,4]")

async def ask(k):
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, b"%016x\\n" % trace.get_current_span().get_span_context().span_id)
    os.close(file)
    await asyncio.sleep(0.005)
    if k == 900 and not killed.exists():
        await asyncio.sleep(2)  # the metrics are written meanwhile
        killed.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return k

telemetry = rs.OpenTelemetry({collector.url!r}, sample=1, most_spans=1e6)
with rs.Metrics(telemetry=telemetry) as metrics:
    stage = rs.lookup(ask, "long", concurrency=4, metrics=metrics)
    frame = spark.range(0, 2000, 1, 4)
    assert frame.select(stage("id").alias("v")).where("v is not null").count() == 2000
    total = metrics.totals()
    print(json.dumps([total.attempts, total.repeated_attempts, total.rows_out]))
"""
    )
    attempts, repeated, rows = json.loads(printed.splitlines()[-1])
    asked = (tmp_path / "log").read_text().split()
    assert (tmp_path / "killed").exists()
    assert rows == 2000 <= attempts
    assert attempts + repeated == len(asked) > 2000
    assert collector.values("rstreams.attempts") == {"ask": len(asked)}
    assert collector.values("rstreams.rows.out") == {"ask": 2000}
    spans = [span for span in collector.spans if span.name != ROOT]
    told = {span.span_id.hex() for span in spans}
    assert told <= set(asked)
    assert len(set(asked) - told) <= 8  # in flight when the worker was killed
    found = {attributes(span)["spark.partition"] for span in spans}
    assert found == {0, 1, 2, 3}
