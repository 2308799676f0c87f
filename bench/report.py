"""The ratios: ``python -m bench.report [--processes N] [--rounds N] [--only GROUP] [--strict]``.

The contestants of a group alternate within several fresh processes; a wrong result fails all.
``bench/README.md`` says how and why.

The figures go to ``build/bench.json``; ``python -m bench.page`` writes that page from them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.drivers import Missing
from bench.groups import GROUPS
from bench.measure import Contestant, Group, Spread, Timing, figure
from bench.targets import judge, rounds_of
from rstreams_fast import __version__, backend

#: Quartiles of fewer would say nothing.
MIN_ROUNDS = 3
RESULTS = Path("build/bench.json")
_LIMIT = 1800  # seconds that one process may take

Rounds = list[dict[str, dict[str, Timing]]]
LeftOut = dict[str, dict[str, str]]


# -- in each process -------------------------------------------------------------------------------


def measure(groups: Sequence[Group], rounds: int, *, first: bool) -> tuple[Rounds, LeftOut]:
    """Every group's rounds, and who could not take part, with the reason."""
    measured: Rounds = [{} for _ in range(rounds)]
    left_out: LeftOut = {}
    for group in groups:
        once = group.rounds == 0
        if once and not first:
            continue
        taking_part = []
        for contestant in group.contestants:
            try:
                if contestant.check is not None:
                    contestant.check()
                if once:
                    contestant.begin(1)
                else:
                    contestant.time_once()  # warm-up
                taking_part.append(contestant)
            except Missing as reason:
                left_out.setdefault(group.name, {})[contestant.name] = str(reason)
        wanted = 1 if once else min(rounds, group.rounds or rounds)
        for number in range(wanted):
            turn = number % max(1, len(taking_part))
            order = taking_part[turn:] + taking_part[:turn]
            measured[number][group.name] = {c.name: c.time_once() for c in order}
    return measured, left_out


# -- over all processes ----------------------------------------------------------------------------


def measure_in_processes(
    groups: Sequence[Group], processes: int, rounds: int
) -> tuple[Rounds, LeftOut]:
    collected: Rounds = []
    left_out: LeftOut = {}
    for number in range(processes):
        begun = time.monotonic()
        with tempfile.TemporaryDirectory() as directory:
            file = Path(directory) / "measured.json"
            command = [sys.executable, "-m", "bench.report", "--worker", str(file)]
            command += ["--rounds", str(rounds), "--number", str(number)]
            for group in groups:
                command += ["--only", group.name]
            subprocess.run(command, check=True, timeout=_LIMIT)
            answer = json.loads(file.read_text(), object_hook=_timing)
        left_out |= answer["left_out"]
        collected += answer["rounds"]
        took = time.monotonic() - begun
        print(f"process {number + 1} of {processes}: {took:.0f} s", file=sys.stderr, flush=True)
    return collected, left_out


def _timing(found: dict[str, Any]) -> Timing | dict[str, Any]:
    return Timing(**found) if found.keys() == {"wall", "cpu"} else found


def summary(group: Group, measured: Rounds, reasons: dict[str, str]) -> dict[str, Any]:
    """A group's figures, as they go to the JSON file."""
    rounds = [each[group.name] for each in measured if each.get(group.name)]
    there = [c for c in group.contestants if rounds and c.name in rounds[0]]
    ours = next((c.name for c in there if c.role == "ours"), None)

    def figures(contestant: Contestant) -> dict[str, Any]:
        name = contestant.name
        answer: dict[str, Any] = {
            "role": contestant.role,
            "note": contestant.note,
            "value": asdict(Spread.of([each[name].wall for each in rounds])),
            "cpu": _median([each[name].cpu for each in rounds]),
        }
        if ours is not None and all(each[ours].wall > 0 for each in rounds):
            ratios = [each[name].wall / each[ours].wall for each in rounds]
            answer["times_ours"] = asdict(Spread.of(ratios))
        return answer

    return {
        "kind": group.kind,
        "title": group.title,
        "unit": group.unit,
        "timed": group.is_timed,
        "rounds": len(rounds),
        "contestants": {c.name: figures(c) for c in there},
        "left_out": reasons,
    }


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def show(name: str, group: dict[str, Any]) -> None:
    print(f"\n{name}: {group['title']} ({group['rounds']} rounds)")
    print(f"  {'':34}{group['unit']:>28}{'CPU':>8}   times ours")
    for contestant, figures in group["contestants"].items():
        cpu = "" if figures["cpu"] is None else figure(figures["cpu"])
        times = str(Spread(**figures["times_ours"])) if "times_ours" in figures else ""
        role = "" if figures["role"] == "ours" else f"({figures['role']})"
        print(
            f"  {contestant:34}{Spread(**figures['value'])!s:>28}{cpu:>8}   {times:26} {role}"
            f" {figures['note']}"
        )
    for contestant, reason in group["left_out"].items():
        print(f"  {contestant:34}left out: {reason}")


def show_targets(targets: list[dict[str, Any]]) -> None:
    print("\ntargets")
    for target in targets:
        bound = f"{target['relation']} {target['bound']:g} {target['unit']}"
        said = "not measured"
        if target["measured"] is not None:
            said = f"{Spread(**target['measured'])!s:26} {'met' if target['met'] else 'NOT MET'}"
        if target["by_cpu"] is not None:
            said += f"   (of CPU: {figure(target['by_cpu']['median'])})"
        print(f"  {target['path']:38}{target['what']:44}{bound:14}{said}")


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
        "python": f"{platform.python_implementation()} {platform.python_version()}"
        + ("" if getattr(sys, "_is_gil_enabled", lambda: True)() else ", free-threaded"),
        "system": f"{platform.system()} {platform.release()}",
        "processor": processor,
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.report", description=__doc__)
    names = [group.name for group in GROUPS]
    parser.add_argument("--processes", type=int, default=3, help="fresh processes to measure in")
    parser.add_argument("--rounds", type=int, default=5, help="rounds in each process")
    parser.add_argument("--only", action="append", choices=names, help="these groups (repeatable)")
    parser.add_argument("--json", type=Path, default=RESULTS, metavar="FILE")
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a target is not met")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--number", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.rounds < 1 or options.processes < 1:
        parser.error("--rounds and --processes must be at least 1")
    groups = [group for group in GROUPS if not options.only or group.name in options.only]
    if options.worker:
        rounds, reasons = measure(groups, options.rounds, first=options.number == 0)
        found = {"left_out": reasons, "rounds": rounds}
        options.worker.write_text(json.dumps(found, default=asdict))
        return 0
    if options.rounds * options.processes < MIN_ROUNDS:
        parser.error(f"quartiles need at least {MIN_ROUNDS} rounds over all processes")

    facts = machine()
    print(", ".join(f"{key} {value}" for key, value in facts.items()))
    print(f"{options.rounds} rounds in each of {options.processes} processes", flush=True)
    measured, left_out = measure_in_processes(groups, options.processes, options.rounds)
    tables = {g.name: summary(g, measured, left_out.get(g.name, {})) for g in groups}
    roles = {g.name: {c.name: c.role for c in g.contestants} for g in groups}
    targets = judge(rounds_of(measured, roles))
    for name, table in tables.items():
        show(name, table)
    show_targets(targets)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    result = {
        "machine": facts | {"load at the end": round(os.getloadavg()[0], 1)},
        "processes": options.processes,
        "rounds": options.rounds,
        "groups": tables,
        "targets": targets,
    }
    options.json.write_text(json.dumps(result, indent=2) + "\n")
    print(f"\nThe figures are in {options.json}.")
    return 1 if options.strict and not all(target["met"] for target in targets) else 0


if __name__ == "__main__":
    sys.exit(main())
