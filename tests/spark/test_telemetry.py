"""Metrics as OpenTelemetry's collector and Prometheus get them."""

from __future__ import annotations

import asyncio
import gc
import logging
import pickle
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from prometheus_client.parser import text_string_to_metric_families

import rstreams_fast.spark as rs
from tests.helpers import DEADLINE, run_python, wait_until
from tests.spark.collector import Collector, collecting
from tests.spark.processes import free_port
from tests.spark.stages import values

PLANT = f"wJalr{7}XUtn"


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as made:
        yield made


class Service:
    """Counts the attempts that it sees. One of ten fails once, one of a hundred always."""

    def __init__(self) -> None:
        self.seen = Counter[int]()

    def attempt(self, k: int) -> int:
        self.seen[k] += 1
        if k % 100 == 50:
            raise KeyError(k)
        if k % 10 == 3 and self.seen[k] == 1:
            raise ConnectionError(k)
        if k % 10 == 4 and self.seen[k] == 1:
            raise rs.RetryAfter(0.01)
        return 2 * k


def job(metrics: rs.Metrics, service: Service, rows: int = 1000) -> None:
    """Call the service for each row, twice for the same cache."""

    async def ask(k: int) -> int:
        await asyncio.sleep(0)
        return service.attempt(k)

    policy = rs.Policy(
        retry=rs.Retry(3, backoff=0.001, on=(ConnectionError,)),
        cache=rs.Cache(rows),
        limit=rs.Limit("telemetry", concurrency=8),
    )
    stage = rs.lookup(policy(ask), pa.int64(), on_failure="null", metrics=metrics)
    found = values(stage, range(rows), range(0, rows, 2))
    assert sum(value is None for value in found) >= rows // 100


def samples(metrics: rs.Metrics) -> dict[tuple[str, str], float]:
    """Return the samples of Prometheus' text, by name and by the label besides ``stage``."""
    found: dict[tuple[str, str], float] = {}
    for family in text_string_to_metric_families(metrics.prometheus()):
        assert family.documentation
        for sample in family.samples:
            (other,) = [*{k: v for k, v in sample.labels.items() if k != "stage"}.values()] or [""]
            found[sample.name, other] = sample.value
    return found


def test_counters_and_seconds_are_those_of_the_totals_and_of_the_service(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=seven")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "team=flights")
    telemetry = rs.OpenTelemetry(service_name="nightly", resource={"env": "test"})
    service = Service()
    with rs.Metrics(telemetry=telemetry) as metrics:
        job(metrics, service)
        assert metrics.flush(DEADLINE)
        total, (stage,) = metrics.totals(), metrics.stages()
        told = samples(metrics)
    attempts = sum(service.seen.values())
    assert attempts == total.attempts > total.calls > 900
    for name, value in (("calls", total.calls), ("attempts", attempts), ("rows.out", 1500)):
        assert collector.values(f"rstreams.{name}") == {stage: value}
        assert told[f"rstreams_{name.replace('.', '_')}_total", ""] == value
    assert collector.values("rstreams.failures", "error.type") == {"KeyError": total.failures}
    assert told["rstreams_failures_total", "KeyError"] == total.failures >= 10
    retried = collector.values("rstreams.retries", "rstreams.cause")
    assert retried == {"failure": total.retries, "service": total.throttled}
    assert min(retried.values()) >= 100
    hits = collector.values("rstreams.hits", "rstreams.source")
    assert hits == {"cache": total.cache_hits, "journal": 0, "shared": 0}
    assert hits["cache"] == told["rstreams_hits_total", "cache"] >= 400
    waits = collector.values("rstreams.call.waits", "rstreams.cause")
    assert waits.keys() == {"limit", "retry", "service"}
    assert waits["service"] == told["rstreams_call_waits_seconds_total", "service"] > 0.5

    data = collector.metrics["rstreams.attempt.duration"].histogram
    (point,) = data.data_points
    bounds = [*map(str, point.explicit_bounds), "+Inf"]
    buckets = [told["rstreams_attempt_duration_seconds_bucket", bound] for bound in bounds]
    assert [sum(point.bucket_counts[: i + 1]) for i in range(len(bounds))] == buckets
    assert point.count == sum(total.latencies.values()) == buckets[-1]
    assert 0 < point.sum == told["rstreams_attempt_duration_seconds_sum", ""] < DEADLINE
    assert data.aggregation_temporality == 2  # cumulative
    assert collector.metrics["rstreams.calls"].sum.is_monotonic
    assert collector.resource.items() >= {
        ("service.name", "nightly"),
        ("env", "test"),
        ("team", "flights"),
    }
    assert {headers["x-tenant"] for _, headers, _ in collector.requests} == {"seven"}


def test_the_seconds_of_attempts_are_in_the_right_buckets(tmp_path: Path) -> None:
    metrics = rs.Metrics(tmp_path)
    took = [0.0001, 0.3, 0.3, 0.7, 3.0, 1000.0]

    def ask(k: int) -> int:
        return k

    values(rs.lookup(ask, pa.int64(), metrics=metrics), range(3))
    (file,) = tmp_path.glob("*.metrics.jsonl")
    counts = rs.StageMetrics()
    for seconds in took:
        counts.count_latency(seconds)
    table = ", ".join(f'"{bucket}": {count}' for bucket, count in counts.latencies.items())
    before = metrics.totals().latencies
    text = file.read_text()
    start = text.index('"latencies": {')
    end = text.index("}", start) + 1
    file.write_text(f'{text[:start]}"latencies": {{{table}}}{text[end:]}')
    assert before != metrics.totals().latencies == counts.latencies
    told = samples(metrics)
    for bound in (0.0009765625, 0.25, 0.5, 1.0, 4.0, 256.0):
        expected = sum(seconds <= bound for seconds in took)
        assert told["rstreams_attempt_duration_seconds_bucket", str(bound)] == expected
    assert told["rstreams_attempt_duration_seconds_bucket", "+Inf"] == len(took)
    assert told["rstreams_attempt_duration_seconds_sum", ""] == pytest.approx(sum(took), rel=0.05)


def test_names_of_functions_and_errors_are_escaped(tmp_path: Path) -> None:
    async def ask(k: int) -> int:
        raise odd("no")

    odd = type('A "B"\\\nC', (Exception,), {})
    ask.__qualname__ = 'ask "that"'
    metrics = rs.Metrics(tmp_path)
    values(rs.lookup(ask, pa.int64(), on_failure="null", metrics=metrics), range(3))
    assert samples(metrics)["rstreams_failures_total", 'A "B"\\\nC'] == 3


def test_counters_do_not_decrease_when_another_attempt_of_a_task_replaces_one(
    tmp_path: Path,
) -> None:
    def ask(k: int) -> int:
        return k

    metrics = rs.Metrics(tmp_path)
    values(rs.lookup(ask, pa.int64(), metrics=metrics), range(300))
    before = samples(metrics)
    for file in tmp_path.glob("*.metrics.json*"):  # as if its host were lost
        file.unlink()
    values(rs.lookup(ask, pa.int64(), metrics=metrics), range(10))
    assert metrics.totals().rows_out == 10
    after = samples(metrics)
    assert before["rstreams_rows_out_total", ""] == after["rstreams_rows_out_total", ""] == 300
    assert {name: value for name, value in before.items() if after[name] < value} == {}


@pytest.mark.parametrize("hangs", [False, True])
def test_a_collector_that_is_down_or_hangs_costs_one_warning_and_two_seconds(
    hangs: bool, caplog: pytest.LogCaptureFixture
) -> None:
    service = Service()
    with collecting() as collector:
        collector.hangs = threading.Event()
        url = collector.url if hangs else f"http://me:{PLANT}@127.0.0.1:{free_port()}"
        telemetry = rs.OpenTelemetry(url, sample=1, interval=0.05, timeout=100)
        with caplog.at_level(logging.DEBUG):
            with rs.Metrics(telemetry=telemetry) as metrics:
                job(metrics, service)
                if hangs:
                    wait_until(lambda: collector.requests, "a request")
                assert not metrics.flush(0.2)
                begun = time.monotonic()
            assert time.monotonic() - begun < DEADLINE
    warned = [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert len(warned) == 1
    assert warned[0].name == "rstreams_fast"
    assert PLANT not in caplog.text
    wait_until(
        lambda: not any(t.name == "rstreams-telemetry" for t in threading.enumerate()),
        "the end of the thread",
    )


def test_headers_are_asked_for_each_request_and_shown_nowhere(collector: Collector) -> None:
    asked: list[int] = []

    def headers() -> dict[str, str]:
        asked.append(1)
        return {"Authorization": f"Bearer {PLANT}{len(asked)}"}

    telemetry = rs.OpenTelemetry(f"{collector.url}/", headers=headers)
    with rs.Metrics(telemetry=telemetry) as metrics:
        assert metrics.flush(DEADLINE)
        assert metrics.flush(DEADLINE)
        copy = pickle.dumps(metrics)
        shown = f"{telemetry!r} {metrics!r} {metrics.read()} {vars(pickle.loads(copy))}"
        assert PLANT not in shown
        assert PLANT.encode() not in copy
        with pytest.raises(TypeError, match="pickled"):
            pickle.dumps(telemetry)
    seen = [sent["Authorization"] for _, sent, _ in collector.requests]
    assert len(set(seen)) == len(seen) >= 3
    assert all(each.startswith(f"Bearer {PLANT}") for each in seen)


def test_a_header_that_cannot_be_sent_is_not_logged(
    collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    headers = {"Authorization": f"Bearer {PLANT}\n"}  # a file's last line, with its end
    telemetry = rs.OpenTelemetry(collector.url, headers=headers)
    with caplog.at_level(logging.DEBUG), rs.Metrics(telemetry=telemetry) as metrics:
        assert not metrics.flush(DEADLINE)
    assert [record.name for record in caplog.records if record.levelno >= logging.WARNING]
    assert PLANT not in caplog.text


def test_metrics_that_nobody_closes_are_sent_when_they_are_garbage(collector: Collector) -> None:
    metrics: Any = rs.Metrics(telemetry=rs.OpenTelemetry(collector.url))
    del metrics
    gc.collect()
    wait_until(lambda: collector.of("/v1/metrics"), "the last figures")


def test_metrics_that_nobody_closes_are_sent_at_the_end_of_the_process(
    collector: Collector,
) -> None:
    run_python(
        "-c",
        "import rstreams_fast.spark as rs\n"
        f"metrics = rs.Metrics(telemetry=rs.OpenTelemetry({collector.url!r}))\n",
    )
    assert len(collector.of("/v1/metrics")) == 1


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ({"endpoint": 7}, "endpoint"),
        ({"endpoint": f"AKIA:{PLANT}@host"}, "endpoint"),
        ({"headers": [1]}, "headers"),
        ({"service_name": 7}, "service_name"),
        ({"resource": [1]}, "resource"),
        ({"sample": "all"}, "sample"),
        ({"sample": 2}, "sample"),
        ({"interval": 0}, "interval"),
        ({"timeout": "1"}, "timeout"),
        ({"timeout": float("inf")}, "timeout"),
    ],
)
def test_words_that_are_wrong_are_named(words: dict[str, Any], named: str) -> None:
    with pytest.raises((TypeError, ValueError), match=named) as caught:
        rs.OpenTelemetry(**words)
    assert PLANT not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "seconds"), [("5000", 5), ("0", 60), ("-5000", 60), ("nan", 60), ("soon", 60)]
)
def test_the_interval_of_the_environment_is_positive(
    text: str, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", text)
    assert rs.OpenTelemetry("http://127.0.0.1:9").interval == seconds


def test_metrics_take_no_other_telemetry() -> None:
    with pytest.raises(TypeError, match="telemetry"):
        rs.Metrics(telemetry="http://127.0.0.1:4318")  # type: ignore[arg-type]
