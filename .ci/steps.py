"""Runs steps in lanes side by side, goes on after a failure, and prints one table.

.ci/steps.py test            the suite without its slow tests
.ci/steps.py slow            its slow tests
.ci/steps.py full [STEP...]  the steps of `make full`, or those named

The table is build/test.md (or slow.md, full.md), and what the steps printed is in build/test/.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

#: Most tests wait more than they work, so there are more lanes than processors.
SUITE = {
    "kits": "tests/tck",
    "streams": "tests/streams",
    "spark": "tests/spark",
    "others": "--ignore=tests/tck --ignore=tests/streams --ignore=tests/spark",
}
#: The kits on every class are the step `tck`, on each backend.
SLOW = {**SUITE, "kits": "tests/tck --ignore-glob=*/test_our_*"}
#: Targets of make. Three lines run at a time, the longest first; those of the first line build in
#: csrc/build. `test` and `slow` run the newest Spark.
FULL = (
    "lint; budgets; c-stress; c-sanitize; mutants; model; memcheck; fuzz; wheels; bench-check",
    "test; slow",
    "spark-matrix SPARK_VERSIONS='3.5-oldest 3.5 4.0 4.1 4.2'",
    "faults; limit-kills; stream-kills; stream-soak",
    "sanitize; tck ARGS=--check",
    "postgres-kills; soak; freethreaded; pipelines",
)
LANES = 3
NO_TESTS = 5
PYTEST = [sys.executable, "-m", "pytest", "-q", "-m"]

what, *chosen = sys.argv[1:]
folder = Path("build", what)
folder.mkdir(parents=True, exist_ok=True)
rows: list[str] = []
counted: Counter[str] = Counter()
failed: list[str] = []


def run(name: str, command: list[str]) -> None:
    print(f"== {name} ...", flush=True)
    start = time.monotonic()
    log = folder / name
    with log.open("w") as out:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, check=False
        )
    output = log.read_text(errors="replace").strip()
    closing = ([line for line in output.splitlines() if line[:4] != "make"] or [""])[-1]
    good = done.returncode in ((0, NO_TESTS) if command[:5] == PYTEST else (0,))
    if not good:
        failed.append(name)
        print(f"== {name} failed:\n{output[-20000:]}", flush=True)
    took = f"{time.monotonic() - start:.0f}"
    print(f"== {name}: {took} s, {closing[-100:]}", flush=True)
    rows.append(f"| {name} | {took} | {'passed' if good else 'FAILED'} | {closing[-100:]} |")
    for number, word in re.findall(r"\b(\d+) ([a-z][a-z ]+?)(?=, \d| in \d)", closing):
        counted[word] += int(number)


if what == "full":
    named = {step.split()[0]: step for step in chosen}
    steps = [[step.strip() for step in lane.split(";")] for lane in FULL]
    if chosen:
        steps = [[named.get(step.split()[0], "") for step in lane] for lane in steps]
    lanes = [
        {step.split()[0]: ["make", "-s", *shlex.split(step)] for step in lane if step}
        for lane in steps
    ]
    if unknown := set(named) - {step for lane in lanes for step in lane}:
        sys.exit(f"make full has no step {', '.join(unknown)}")
else:
    mark = "not slow" if what == "test" else what
    suite = SUITE if what == "test" else SLOW
    lanes = [{name: [*PYTEST, mark, *paths.split()]} for name, paths in suite.items()]

begun = time.monotonic()
with ThreadPoolExecutor(LANES if what == "full" else len(lanes)) as pool:
    list(pool.map(lambda lane: [run(*step) for step in lane.items()], lanes))
table = "\n".join(["| step | seconds | result | its last line |", "|---|---:|---|---|", *rows])
Path("build", f"{what}.md").write_text(f"{table}\n")
print(table)
if failed and not counted["failed"]:  # a pytest that died says no such line
    counted["failed"] = len(failed)
words = ", ".join(f"{number} {word}" for word, number in counted.items())
print(words or "no tests", f"in {time.monotonic() - begun:.0f}s")
sys.exit(bool(failed))
