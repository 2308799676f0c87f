"""``python -m bench.lone_rows``: how long a row of a stream takes, from the broker to the sink.

Rows are sent to a Kafka topic at a rate. A query calls a function that waits for 20 ms: in a plain
UDF, and in stages with and without policies. The table has quantiles of the seconds from the time
at which a row was sent to the time at which its micro-batch was handed to ``foreachBatch``.
``--worker`` leaves Spark out: it gives micro-batches to the function of a partition.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

import rstreams_fast.spark as rs

CALL_SECONDS: Final = 0.02
RATES: Final = (1, 10, 1000)
MICRO_BATCH_SECONDS: Final = 0.1
"""What a micro-batch of Spark takes at least: with ``--worker`` each starts after so long."""

UDF: Final = "plain UDF"

OUTPUT: Final = pa.schema([("v", pa.int64())])


async def call(k: int) -> int:
    await asyncio.sleep(CALL_SECONDS)
    return 2 * k


async def call_many(keys: list[int]) -> list[int]:
    await asyncio.sleep(CALL_SECONDS)
    return [2 * k for k in keys]


def udf(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        values = []
        for k in batch.column("k").to_pylist():
            time.sleep(CALL_SECONDS)
            values.append(2 * k)
        yield batch.append_column("v", pa.array(values, pa.int64()))


def contestants(folder: Path) -> dict[str, Callable[[Any], Iterator[Any]]]:
    """Return the functions of a partition, by name."""

    def limit(name: str) -> rs.Limit:
        return rs.Limit(name, concurrency=100, rate=100_000, scope="executor")

    def journal(name: str) -> rs.Journal:
        return rs.Journal(str(folder / name), version="1")

    def policy(fn: Any, **words: Any) -> Any:
        return rs.Policy(timeout=5.0, retry=rs.Retry(3), **words)(fn)

    stages = {
        "enrich": (call, None),
        "batch=64": (call_many, 64),
        "cache": (policy(call, cache=rs.Cache()), None),
        "journal": (policy(call, journal=journal("journal")), None),
        "limit": (policy(call, limit=limit("lone rows")), None),
        "all of them": (
            policy(
                call_many,
                cache=rs.Cache(),
                journal=journal("all"),
                limit=limit("lone rows, all"),
                circuit=rs.Circuit(failures=10),
            ),
            64,
        ),
    }
    made = {
        name: rs.enrich(fn, on="k", output=OUTPUT, batch=batch).as_map_fn()
        for name, (fn, batch) in stages.items()
    }
    return {UDF: udf, **made}


def print_quantiles(rate: int, name: str, seconds: list[float]) -> None:
    found = sorted(seconds)
    told = [1000 * found[min(len(found) - 1, int(len(found) * q))] for q in (0.5, 0.9, 0.99)]
    cells = " | ".join(f"{value:.1f}" for value in told)
    print(f"| {rate} | {name} | {len(found)} | {cells} |", flush=True)


def in_a_worker(seconds: float, folder: Path) -> None:
    functions, key, pause = contestants(folder), 0, threading.Event()
    for rate in RATES:
        rows = max(1, int(rate * MICRO_BATCH_SECONDS))
        took: dict[str, list[float]] = {name: [] for name in functions}
        end = time.monotonic() + seconds * len(functions)
        while time.monotonic() < end:
            for name, function in functions.items():
                if name == UDF and rows > 1 and len(took[name]) >= 3:
                    continue  # it takes too long
                batch = pa.RecordBatch.from_pydict({"k": list(range(key, key + rows))})
                key += rows
                begin = time.perf_counter()
                assert sum(out.num_rows for out in function(iter([batch]))) == rows
                took[name].append(time.perf_counter() - begin)
                pause.wait(MICRO_BATCH_SECONDS - took[name][-1])
        for name, times in took.items():
            print_quantiles(rate, name, times)


def in_spark(seconds: float, folder: Path) -> None:
    from tests.spark.conftest import session
    from tests.spark.kafka_server import KafkaServer, connector

    with KafkaServer(folder) as kafka:
        spark = session(conf={**connector(), "spark.ui.showConsoleProgress": "false"})
        for rate in RATES:
            for name, function in contestants(folder).items():
                if name == UDF and rate * CALL_SECONDS > 1:
                    print(f"| {rate} | {name} | | makes {1 / CALL_SECONDS:g} calls a second | | |")
                    continue
                topic = f"{name.translate(str.maketrans(' =', '--'))}-{rate}"
                took: list[float] = []

                def note(frame: Any, _: int, took: list[float] = took) -> None:
                    rows = frame.select("sent").collect()
                    now = time.time()
                    took.extend(now - row.sent for row in rows)

                kafka.send(topic, ["0 0"])  # makes the topic
                topics = spark.readStream.format("kafka").option("subscribe", topic)
                stream = topics.option("kafka.bootstrap.servers", kafka.servers).load()
                rows = stream.selectExpr("split(cast(value as string), ' ') s").selectExpr(
                    "cast(s[0] as long) k", "cast(s[1] as double) sent"
                )
                out = rows.mapInArrow(function, "k long, sent double, v long")
                noting = out.writeStream.foreachBatch(note)
                noting = noting.option("checkpointLocation", tempfile.mkdtemp(dir=folder))
                query = noting.start()
                send(kafka, topic, rate, 5.0)  # until the workers are warm
                took.clear()
                send(kafka, topic, rate, seconds)
                query.processAllAvailable()
                query.stop()
                print_quantiles(rate, name, took)
        spark.stop()


_keys = iter(range(1, 1 << 62))


def send(kafka: Any, topic: str, rate: int, seconds: float) -> None:
    """Send numbered rows with the time, at a rate."""
    step = max(1, rate // 100)
    pause = threading.Event()
    begin = time.monotonic()
    for number in range(int(rate * seconds / step)):
        pause.wait(max(0.0, begin + number * step / rate - time.monotonic()))
        kafka.send(topic, [f"{next(_keys)} {time.time()}" for _ in range(step)])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.lone_rows", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="of a rate and contestant")
    parser.add_argument("--worker", action="store_true", help="without Spark")
    words = parser.parse_args()
    print("| rows a second | call in | samples | ms: median | 90 % | 99 % |")
    print("|---:|---|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory(prefix="rstreams-lone-") as made:
        (in_a_worker if words.worker else in_spark)(words.seconds, Path(made))
