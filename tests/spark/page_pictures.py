"""Pictures of the live page of a job, for the docs: ``python -m tests.spark.page_pictures``."""

from __future__ import annotations

import asyncio
import random
import threading
from typing import Final

import rstreams_fast.spark as rs
from rstreams_fast.spark import report
from tests.spark.chromium import Chromium
from tests.spark.conftest import ROOT, session

PICTURES: Final = ROOT / "docs" / "pictures"
ROWS: Final = 24_000
SIZES: Final = {1300: 1200, 400: 1500}
"""The heights that the pictures show, by width."""

PLANES: Final = rs.Limit("planes", rate=900, scope="job")


@rs.Policy(limit=PLANES)
async def fetch_plane(key: int) -> str:
    await asyncio.sleep(0.02 if random.random() < 0.98 else 0.3)
    if key % 400 == 0:
        raise LookupError(key)
    return f"N{key}"


async def fetch_weather(key: int) -> float:
    await asyncio.sleep(random.uniform(0.02, 0.06))
    return key / 7


def main() -> None:
    with rs.Metrics() as metrics, Chromium() as browser:
        words = {"on": "id", "metrics": metrics}
        planes = rs.enrich(fetch_plane, output="plane string", on_failure="column", **words)
        weather = rs.enrich(fetch_weather, output="wind double", **words)
        spark = session(conf={"spark.ui.showConsoleProgress": "false"})
        frame = spark.range(0, ROWS, 1, 2).transform(planes).transform(weather)
        with report.watch(metrics, rows=ROWS, page=True, title="Planes and weather") as watch:
            job = threading.Thread(target=frame.write.format("noop").mode("overwrite").save)
            job.start()
            browser.open(watch.url)
            rows = "Number(document.querySelector('#rows').innerText.replaceAll(',', ''))"
            browser.wait(f"{rows} > {ROWS // 2}", seconds=300)
            for width, height in SIZES.items():
                browser.resize(width)
                browser.wait("new Promise((done) => setTimeout(() => done(true), 1000))")
                browser.picture(PICTURES / f"page-{width}.png", width, height)
            job.join()
        spark.stop()


if __name__ == "__main__":
    main()
