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

#: Most tests wait more than they work, so there are more lanes than processors. The long tests of
#: Spark come first: of the slow ones, which work more, three lanes run at a time.
SUITE = {
    "spark-m-z": "tests/spark --ignore-glob=*/spark/test_[a-l]*",
    "spark-a-l": "tests/spark --ignore-glob=*/spark/test_[m-z]*",
    "streams": "tests/streams",
    "others": " ".join(f"--ignore=tests/{each}" for each in ("tck", "calls", "streams", "spark")),
    "kits": "tests/tck",
    "calls": "tests/calls",
}
STEPS = "--ignore-glob=*/tck/test_our_* --ignore=tests/spark/test_faults.py"  # `tck`, `faults`
SLOW = {name: f"{paths} {STEPS}" for name, paths in SUITE.items()}
#: Targets of make, kills and soaks shorter than by default. Two lines run at a time, one of which
#: builds in csrc/build. The last line runs alone: it judges how long a limit lies idle.
FULL = (
    "test; slow; tck ARGS=--check",
    "spark-matrix SPARK_VERSIONS='3.5-oldest 4.0 4.1 4.2' ARGS=\"-m 'not slow'\"",
    "lint; budgets; c-stress; c-sanitize; mutants; model; memcheck; fuzz; wheels; bench-check",
    "freethreaded; sanitize",
    "postgres-kills ARGS='--batch 5 --stream 5 --race 2'; stream-kills ARGS='--kills 10'; faults",
    "stream-soak ARGS='--seconds 120'; pipelines PIPELINES=3000; soak SOAK_SECONDS=180",
    "limit-kills ARGS='--kills 20 --rate-kills 5'",
)
LANES = {"test": len(SUITE), "slow": 3, "full": 2}
PYTEST = [sys.executable, "-m", "pytest", "-q", "-m"]

what, *chosen = sys.argv[1:]
(folder := Path("build", what)).mkdir(parents=True, exist_ok=True)
rows: list[str] = []
counted: Counter[str] = Counter()
failed: list[str] = []


def run(name: str, command: list[str]) -> None:
    print(f"== {name} ...", flush=True)
    start = time.monotonic()
    with (log := folder / name).open("w") as out:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, check=False
        )
    output = log.read_text(errors="replace").strip()
    lines = [line for line in output.splitlines() if line[:4] != "make"] or [""]
    closing = (re.findall(r".* in [\d.]+s\b.*", output) or lines)[-1][-100:]  # pytest's, if any
    good = done.returncode in ((0, 5) if command[:5] == PYTEST else (0,))  # 5: no tests
    if not good:
        failed.append(name)
        print(f"== {name} failed:\n{output[-20000:]}", flush=True)
    took = f"{time.monotonic() - start:.0f}"
    print(f"== {name}: {took} s, {closing}", flush=True)
    rows.append(f"| {name} | {took} | {'passed' if good else 'FAILED'} | {closing} |")
    for number, word in re.findall(r"\b(\d+) ([a-z][a-z ]+?)(?=, \d| in \d)", closing):
        counted[word] += int(number)


if what == "full":
    named, *lanes = [
        {words[0]: ["make", "-s", *words] for words in map(shlex.split, steps)}
        for steps in (chosen, *(lane.split(";") for lane in FULL))
    ]
    if unknown := set(named).difference(*lanes):
        sys.exit(f"make full has no step {', '.join(unknown)}")
    if chosen:
        lanes = [{name: named[name] for name in lane if name in named} for lane in lanes]
else:
    mark, suite = ("not slow", SUITE) if what == "test" else ("slow", SLOW)
    lanes = [{name: [*PYTEST, mark, *paths.split()]} for name, paths in suite.items()]

begun = time.monotonic()
last = [lanes.pop()] if what == "full" else []
for together in (lanes, last):
    with ThreadPoolExecutor(LANES[what]) as pool:
        list(pool.map(lambda lane: [run(*step) for step in lane.items()], together))
table = "\n".join(["| step | s | result | last line |", "|---|---:|---|---|", *rows])
Path("build", f"{what}.md").write_text(f"{table}\n")
print(table)
if failed and not counted["failed"]:  # a pytest that died says no such line
    counted["failed"] = len(failed)
words = ", ".join(f"{number} {word}" for word, number in counted.items())
print(words or "no tests", f"in {time.monotonic() - begun:.0f}s")
sys.exit(bool(failed))
