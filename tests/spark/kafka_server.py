"""A Kafka broker of its own for tests, which is started on loopback and ended with them."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Self

import pyspark

from tests.helpers import wait_until
from tests.jvm_tck.maven import Jars, find_java
from tests.spark.processes import free_port

ROOT: Final = Path(__file__).parents[2]
BROKER: Final = Jars("the Kafka broker", Path(__file__).parent / "kafka", ROOT / "build" / "kafka")
PROPERTIES: Final = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
log.dirs={data}
num.partitions=2
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
"""
CONNECTORS: Final = {"3.5": "2.12:3.5.7", "4.0": "2.13:4.0.1", "4.1": "2.13:4.1.3"}
"""Scala and the release of Spark's connector, by the version of Spark."""

NEWEST: Final = "2.13:4.2.0"


def connector() -> dict[str, str]:
    """Return the configuration with which a session brings Spark's Kafka connector."""
    found = CONNECTORS.get(".".join(pyspark.__version__.split(".")[:2]), NEWEST)
    return {"spark.jars.packages": f"org.apache.spark:spark-sql-kafka-0-10_{found}"}


class KafkaServer:
    """A broker, which is its own controller; all that it writes is in ``folder``."""

    def __init__(self, folder: Path) -> None:
        port, controller = free_port(), free_port()
        self.servers = f"127.0.0.1:{port}"
        words = folder / "server.properties"
        words.write_text(
            PROPERTIES.format(port=port, controller=controller, data=folder / "data"),
            encoding="utf-8",
        )
        self._java = [
            *(str(find_java()), "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m"),
            *("-cp", os.pathsep.join(map(str, BROKER.bring()))),
        ]
        with (folder / "log").open("wb") as log:
            made = ["kafka.tools.StorageTool", "format", "-t", "A" * 22, "-c", str(words)]
            subprocess.run([*self._java, *made], check=True, stdout=log, stderr=log)
            self._process = subprocess.Popen(
                [*self._java, "kafka.Kafka", str(words)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            wait_until(self._answers, "the broker's answer", timeout=60)
        except BaseException:
            self.close()
            raise

    def _answers(self) -> bool:
        with socket.socket() as asking:
            host, port = self.servers.split(":")
            return asking.connect_ex((host, int(port))) == 0

    def send(self, topic: str, values: Iterable[str]) -> None:
        """Append ``values`` to ``topic``; the topic is made if it does not exist."""
        from confluent_kafka import Producer

        failed: list[object] = []

        def delivered(error: object, _: object) -> None:
            if error is not None:
                failed.append(error)

        producer = Producer({"bootstrap.servers": self.servers, "acks": "all"})
        for value in values:
            producer.produce(topic, value, callback=delivered)
            producer.poll(0)
        left = producer.flush(60)
        assert not left, f"{left} values were not sent"
        assert not failed, failed

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
