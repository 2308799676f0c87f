"""The ratios: ``python -m bench.report [--rounds N] [--json FILE] [--strict]``.

Contestants alternate: every round runs each of them once, in an order that rotates, so that a mood
of the machine meets all of them. A ratio is taken within a round; printed are its median over the
rounds and, in brackets, its quartiles. The clock decides; the same ratio of processor time, which
others on the machine disturb less, stands beside it. Every run's result is checked.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.contestants import BOUNDARY, FUSED_C, FUSED_PYTHON, Contestant
from bench.measure import Timing, time_once
from rstreams_fast import __version__, backend

OURS = "ours"
PYTHON_FLOOR = "hand-written Python loop"
C_FLOOR = "C loop"
BOUNDED_QUEUE = "queue.Queue(1024)"
SIMPLE_QUEUE = "SimpleQueue, unbounded"
OBSERVE_ON = "RxPY 6.1 observe_on"


@dataclass(frozen=True)
class Spread:
    """A median with its quartiles."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, low, high)

    def __str__(self) -> str:
        return f"{self.median:7.2f}  [{self.low:.2f} .. {self.high:.2f}]"


@dataclass(frozen=True)
class Goal:
    """A ratio of times that the project promises: at most, or at least, ``bound``.

    Of several names below, the one with the lowest median counts.
    """

    what: str
    above: str
    below: tuple[str, ...]
    bound: float
    at_most: bool

    def ratio(self, times: list[dict[str, float]]) -> Spread:
        """From every round's time per element, by contestant."""
        fastest = min(self.below, key=lambda name: statistics.median(t[name] for t in times))
        return Spread.of([t[self.above] / t[fastest] for t in times])

    def holds(self, ratio: float) -> bool:
        return ratio <= self.bound if self.at_most else ratio >= self.bound


@dataclass(frozen=True)
class Workload:
    title: str
    contestants: list[Contestant]
    goals: list[Goal]


WORKLOADS = [
    Workload(
        "fused, Python callables: range -> map -> filter -> on_next",
        FUSED_PYTHON,
        [
            Goal("ours / the faster floor", OURS, (PYTHON_FLOOR, C_FLOOR), 1.15, at_most=True),
            Goal("RxPY 6.1 / ours", "RxPY 6.1", (OURS,), 2.7, at_most=False),
        ],
    ),
    Workload("fused, C callables", FUSED_C, []),
    Workload(
        "boundary at 1024 between two threads, to a Python on_next",
        BOUNDARY,
        [
            Goal("queue.Queue / ours", BOUNDED_QUEUE, (OURS,), 8.0, at_most=False),
            Goal("RxPY 6.1 observe_on / ours", OBSERVE_ON, (OURS,), 50.0, at_most=False),
            Goal("ours / unbounded SimpleQueue", OURS, (SIMPLE_QUEUE,), 1.35, at_most=True),
        ],
    ),
]


def measure(workload: Workload, rounds: int) -> list[dict[str, Timing]]:
    """Per round, the timing of every contestant by name."""
    expected = {}
    for contestant in workload.contestants:
        contestant.check()
        expected[contestant.name] = contestant.expected_total()
        time_once(contestant, expected[contestant.name])  # warm-up
    measured = []
    for number in range(rounds):
        turn = number % len(workload.contestants)
        order = workload.contestants[turn:] + workload.contestants[:turn]
        measured.append({c.name: time_once(c, expected[c.name]) for c in order})
    return measured


def report(workload: Workload, measured: list[dict[str, Timing]]) -> tuple[dict[str, object], bool]:
    """Print one workload's table; return it for the JSON file, and whether every goal holds."""
    print(f"\n{workload.title}  ({len(measured)} rounds)")
    print(f"  {'':28}{'ns per element':^28}{'CPU ns':>8}   {'times ours':^24}")
    contestants: dict[str, object] = {}
    for contestant in workload.contestants:
        name = contestant.name
        wall = Spread.of([timings[name].wall for timings in measured])
        cpu = Spread.of([timings[name].cpu for timings in measured])
        times = Spread.of([timings[name].wall / timings[OURS].wall for timings in measured])
        print(f"  {name:28}{wall!s:28}{cpu.median:8.0f}   {times!s:24}")
        contestants[name] = {
            "elements": contestant.n,
            "wall_ns_per_element": asdict(wall),
            "cpu_ns_per_element": asdict(cpu),
            "times_ours": asdict(times),
        }
    goals, all_hold = [], True
    for goal in workload.goals:
        ratio = goal.ratio([{name: t.wall for name, t in timings.items()} for timings in measured])
        cpu_ratio = goal.ratio(
            [{name: t.cpu for name, t in timings.items()} for timings in measured]
        )
        holds = goal.holds(ratio.median)
        all_hold = all_hold and holds
        relation = "at most" if goal.at_most else "at least"
        verdict = "holds" if holds else "DOES NOT HOLD"
        print(
            f"  {goal.what:32}{ratio!s:24} {relation} {goal.bound:g}: {verdict}"
            f"  (of CPU: {cpu_ratio.median:.2f})"
        )
        goals.append(
            {
                "what": goal.what,
                relation: goal.bound,
                "ratio": asdict(ratio),
                "cpu_ratio": asdict(cpu_ratio),
                "holds": holds,
            }
        )
    table: dict[str, object] = {"title": workload.title, "contestants": contestants, "goals": goals}
    return table, all_hold


def machine() -> dict[str, object]:
    """What the figures were measured on."""
    processor = platform.processor()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        processor = names[0].partition(":")[2].strip() if names else processor
    return {
        "rstreams_fast": __version__,
        "backend": backend,
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": f"{platform.system()} {platform.release()}",
        "processor": processor,
        "cores": os.cpu_count(),
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.report", description=__doc__)
    parser.add_argument("--rounds", type=int, default=15, help="rounds per workload (at least 3)")
    parser.add_argument("--json", type=Path, default=Path("build/bench.json"), metavar="FILE")
    parser.add_argument(
        "--strict", action="store_true", help="exit with 1 when a promised ratio does not hold"
    )
    options = parser.parse_args(argv)
    if options.rounds < 3:
        parser.error(f"--rounds must be at least 3, not {options.rounds}")

    facts = machine()
    print(", ".join(f"{key} {value}" for key, value in facts.items()))
    tables, all_hold = [], True
    for workload in WORKLOADS:
        table, holds = report(workload, measure(workload, options.rounds))
        tables.append(table)
        all_hold = all_hold and holds
    options.json.parent.mkdir(parents=True, exist_ok=True)
    result = {"machine": facts, "rounds": options.rounds, "workloads": tables}
    options.json.write_text(json.dumps(result, indent=2) + "\n")
    print(f"\nThe figures are in {options.json}.")
    return 1 if options.strict and not all_hold else 0


if __name__ == "__main__":
    sys.exit(main())
