"""Writes ``bench/README.md`` between its marks: ``python -m bench.page``.

What ``python -m bench.report`` left in ``build`` is taken into ``bench/figures.json`` first. Each
number of the generated part comes from that file.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.measure import Spread, figure
from bench.report import RESULTS

__all__ = ["BEGIN", "END", "SECTIONS", "dump", "render", "replace_figures"]

HERE = Path(__file__).parent
PAGE = HERE / "README.md"
FIGURES = HERE / "figures.json"
#: Each result in ``build``, by its name in the file of figures.
RUNS = {"gil": RESULTS, "free-threaded": RESULTS.with_name("bench-freethreaded.json")}

BEGIN = "<!-- figures: written by python -m bench.page -->"
END = "<!-- figures: end -->"

#: The groups that have a row of their own; all others share one sentence.
SECTIONS = {
    "In one thread": (
        *("fused", "fused-c", "fused-names", "to_list", "for", "reduce", "to_arrow"),
        *("maps-1", "maps-11", "merge", "zip", "flat_map", "multicast", "replay", "subscribe"),
        *("idle", "million-idle"),
    ),
    "From thread to thread": (
        *("boundary", "boundary-65536", "boundary-busy", "boundary-memory", "merge-threads"),
        *("multicast-threads", "async-for", "loop-lag", "batches"),
    ),
    "Calls": ("map_async", "map_async-64", "map_async-256", "map_blocking", "map_blocking-python"),
    "Primitives, from Python": (
        *("demand", "ring", "ring-bursts", "serializer-1", "serializer-4", "queue-1", "queue-8"),
        *("queue-of-one", "records-256", "records-4096", "window"),
    ),
    "Primitives, from C": (
        *("demand-c-1", "demand-c-8", "ring-c", "ring-c-bursts", "serializer-c-1"),
        "serializer-c-4",
    ),
}

Table = Mapping[str, Any]


def render(runs: Mapping[str, Table]) -> str:
    """The generated part of the page, from the file of figures."""
    result, other = runs["gil"], runs.get("free-threaded")
    groups, without = result["groups"], other["groups"] if other else {}
    facts = result["machine"]
    machine = (
        f"{facts['processor'] or 'Unknown processor'}, {facts['cores']} cores, {facts['system']}, "
        f"{facts['python']}, backend `{facts['backend']}`; {result['rounds']} rounds in each of "
        f"{result['processes']} processes; load average {facts['load']} at the start and "
        f"{facts['load at the end']} at the end. Read the ratios, not the nanoseconds."
    )
    lines = [machine, ""]
    for title, names in SECTIONS.items():
        lines += [f"## {title}", "", "| | ours | floor | peer |", "|---|---|---|---|"]
        lines += (_row(groups[name], without.get(name)) for name in names if name in groups)
        lines.append("")
    lines += [*_others(groups), "", *_targets(result["targets"])]
    return "\n".join(lines)


def replace_figures(page: str, figures: str) -> str:
    """The page with what stands between the two marks replaced."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE.name} has lost its marks: {BEGIN} .. {END}")
    return f"{before}{BEGIN}\n\n{figures.strip()}\n\n{END}{after}"


def dump(runs: Mapping[str, Table]) -> str:
    """The file of figures: a line for each group and target, so that a change shows its place."""
    return re.sub(r' ("[^"]*": {"kind"|{"path")', r"\n\1", json.dumps(runs)) + "\n"


def _spread(values: Mapping[str, float], unit: str = "") -> str:
    spread = Spread(**values)
    shown = figure(spread.median) if spread.low == spread.high else str(spread)
    return f"{shown} {unit}".strip()


def _best(group: Table, role: str) -> tuple[str, Table] | None:
    """The fastest of a role, with its ratio to ours."""
    ratios = [
        (name, figures)
        for name, figures in group["contestants"].items()
        if figures["role"] == role and "times_ours" in figures
    ]
    return min(ratios, key=lambda each: each[1]["times_ours"]["median"], default=None)


def _against(group: Table, role: str) -> str:
    best = _best(group, role)
    if best is None:
        return ""
    name, figures = best
    return f"{_spread(figures['times_ours'])} {', '.join(filter(None, [name, figures['note']]))}"


def _row(group: Table, without: Table | None) -> str:
    name, ours = next(each for each in group["contestants"].items() if each[1]["role"] == "ours")
    value = _spread(ours["value"], group["unit"].replace(" per ", "/"))
    if without:
        value += f"; without a GIL {figure(without['contestants'][name]['value']['median'])}"
    return (
        f"| {group['title']} | {value} | {_against(group, 'floor')} | {_against(group, 'peer')} |"
    )


def _others(groups: Mapping[str, Table]) -> Iterator[str]:
    shown = {name for names in SECTIONS.values() for name in names}
    rest = [group for name, group in groups.items() if name not in shown]
    yield f"The other {len(rest)} groups are operators and other sizes:"
    for role in ("floor", "peer"):
        best = [found for group in rest if (found := _best(group, role))]
        ratios = sorted(figures["times_ours"]["median"] for _, figures in best)
        if ratios:
            middle = ratios[len(ratios) // 2]
            yield (
                f"the fastest {role} takes {figure(ratios[0])} to {figure(ratios[-1])} times ours, "
                f"in the middle {figure(middle)} ({len(ratios)} groups){',.'[role == 'peer']}"
            )


def _targets(targets: list[Table]) -> Iterator[str]:
    met = sum(target["met"] is True for target in targets)
    yield "## Targets"
    yield ""
    yield f"{met} of {len(targets)} are met in this run. Missed or not measured:"
    yield ""
    yield "| path | figure | target | measured |"
    yield "|---|---|---|---|"
    for target in targets:
        if target["met"] is not True:
            relation = {"<=": "at most", ">=": "at least"}[target["relation"]]
            bound = f"{relation} {target['bound']:g} {target['unit']}".strip()
            measured = target["measured"]
            said = _spread(measured, target["unit"]) if measured else "not measured"
            yield f"| {target['path']} | {target['what']} | {bound} | {said} |"


def main() -> int:
    runs = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
    runs |= {name: json.loads(path.read_text()) for name, path in RUNS.items() if path.exists()}
    if "gil" not in runs:
        print(f"there is no {RESULTS}; run: python -m bench.report", file=sys.stderr)
        return 1
    FIGURES.write_text(dump(runs))
    PAGE.write_text(replace_figures(PAGE.read_text(), render(runs)))
    print(f"{FIGURES.name} and {PAGE.name} are written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
