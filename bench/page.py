"""Writes the figures into ``bench/README.md``, and the picture: ``python -m bench.page``.

All numbers on the page come from the JSON file that ``python -m bench.report`` wrote.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.measure import Spread, figure
from bench.report import RESULTS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["BEGIN", "END", "render", "replace_figures"]

HERE = Path(__file__).parent
PAGE = HERE / "README.md"
#: What `make bench-freethreaded` measured, if it did.
WITHOUT_GIL = RESULTS.with_name("bench-freethreaded.json")
PICTURE = HERE / "figures.png"

BEGIN = "<!-- figures: written by python -m bench.page -->"
END = "<!-- figures: end -->"

_ROLES = {"ours": "", "floor": "floor", "peer": "peer", "lost": "design that lost"}
_COLOURS = {"ours": "#2a9d8f", "floor": "#1f77b4", "peer": "#e07b39", "lost": "#8a8a8a"}

Table = Mapping[str, Any]


def render(result: Table, without_gil: Table | None = None) -> str:
    """The generated part of the page; ``without_gil``: what was measured on such a Python."""
    return "\n".join(
        [
            *_machine(result),
            *_targets(result["targets"]),
            *_overview(result["groups"]),
            *(_without_gil(result, without_gil) if without_gil else ()),
            *_lost(result["groups"]),
            "## All figures",
            "",
            *(line for name, group in result["groups"].items() for line in _group(name, group)),
        ]
    )


def replace_figures(page: str, figures: str) -> str:
    """The page with what stands between the two marks replaced."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE.name} has lost its marks: {BEGIN} .. {END}")
    return f"{before}{BEGIN}\n\n{figures.strip()}\n\n{END}{after}"


def _spread(values: Mapping[str, float] | None, unit: str = "") -> str:
    if values is None:
        return ""
    spread = Spread(**values)
    if spread.low == spread.high:
        return f"{figure(spread.median)} {unit}".strip()
    return f"{figure(spread.median)} [{figure(spread.low)} .. {figure(spread.high)}] {unit}".strip()


def _machine(result: Table) -> Iterator[str]:
    facts = result["machine"]
    yield (
        f"{facts['processor'] or 'Unknown processor'}, {facts['cores']} cores, {facts['system']}, "
        f"{facts['python']}, backend `{facts['backend']}`; {result['rounds']} rounds in each of "
        f"{result['processes']} processes; load average {facts['load']} at the start and "
        f"{facts['load at the end']} at the end. Read the ratios, not the nanoseconds."
    )
    yield ""


def _targets(targets: Sequence[Table]) -> Iterator[str]:
    met = sum(target["met"] is True for target in targets)
    yield "## Targets"
    yield ""
    yield (
        f"{met} of {len(targets)} are met in this run. `of CPU` is the same figure by processor "
        "time instead of the clock."
    )
    yield ""
    yield "| path | figure | target | measured | of CPU | |"
    yield "|---|---|---|---|---|---|"
    for target in targets:
        relation = {"<=": "at most", ">=": "at least"}[target["relation"]]
        bound = f"{relation} {target['bound']:g} {target['unit']}".strip()
        verdict = {True: "met", False: "**not met**", None: "not measured"}[target["met"]]
        cpu = figure(target["by_cpu"]["median"]) if target["by_cpu"] else ""
        measured = _spread(target["measured"], target["unit"])
        yield f"| {target['path']} | {target['what']} | {bound} | {measured} | {cpu} | {verdict} |"
    yield ""


def _ours(group: Table) -> str | None:
    roles = group["contestants"].items()
    return next((name for name, figures in roles if figures["role"] == "ours"), None)


def _fastest(group: Table, role: str) -> str | None:
    names = [name for name, figures in group["contestants"].items() if figures["role"] == role]
    values = group["contestants"]
    return min(names, key=lambda name: values[name]["value"]["median"], default=None)


def _against(group: Table, role: str) -> str:
    """The fastest of a role, and how many times ours it takes."""
    name = _fastest(group, role)
    if name is None or "times_ours" not in group["contestants"][name]:
        return ""
    note = group["contestants"][name]["note"]
    shown = f"{name}, {note}" if note else name
    return f"{_spread(group['contestants'][name]['times_ours'])} ({shown})"


def _overview(groups: Mapping[str, Table]) -> Iterator[str]:
    yield "## Ours, the fastest floor, the fastest peer"
    yield ""
    yield (
        "The figures of floor and peer are times ours: below 1 they are faster. A peer that says "
        "*unbounded* does less: a slow consumer fills the memory."
    )
    yield ""
    yield "![Times ours, by group](figures.png)"
    yield ""
    for kind, title in (("use", "Uses"), ("primitive", "Primitives")):
        yield f"| {title} | ours | fastest floor | fastest peer |"
        yield "|---|---|---|---|"
        for group in groups.values():
            ours = _ours(group)
            if group["kind"] == kind and ours is not None:
                value = _spread(group["contestants"][ours]["value"], group["unit"])
                floor, peer = _against(group, "floor"), _against(group, "peer")
                yield f"| {group['title']} | {value} | {floor} | {peer} |"
        yield ""


def _without_gil(result: Table, without: Table) -> Iterator[str]:
    facts = without["machine"]
    yield f"## Without a GIL: {facts['python']}"
    yield ""
    yield (
        f"The same work on a free-threaded Python, {without['rounds']} rounds in each of "
        f"{without['processes']} processes; load average {facts['load']} at the start and "
        f"{facts['load at the end']} at the end. Floor and peer are times ours, without a GIL as "
        "well. An element that one thread makes and another drops is freed by its maker, and "
        "what is handed over here is: the figures contain that."
    )
    yield ""
    python = result["machine"]["python"]
    yield f"| | ours, {python} | ours, without a GIL | fastest floor | fastest peer |"
    yield "|---|---|---|---|---|"
    for name, group in without["groups"].items():
        ours, before = _ours(group), result["groups"].get(name)
        if ours is None:
            continue
        with_gil = before["contestants"].get(ours) if before else None
        yield (
            f"| {group['title']} | {_spread(with_gil['value']) if with_gil else ''} "
            f"| {_spread(group['contestants'][ours]['value'], group['unit'])} "
            f"| {_against(group, 'floor')} | {_against(group, 'peer')} |"
        )
    yield ""


def _lost(groups: Mapping[str, Table]) -> Iterator[str]:
    yield "## Designs that lost"
    yield ""
    yield "| design | where | takes | times ours |"
    yield "|---|---|---|---|"
    for group in groups.values():
        for name, figures in group["contestants"].items():
            if figures["role"] == "lost":
                value = _spread(figures["value"], group["unit"])
                said = f"{name}: {figures['note']}" if figures["note"] else name
                times = _spread(figures.get("times_ours"))
                yield f"| {said} | {group['title']} | {value} | {times} |"
    yield ""


def _group(name: str, group: Table) -> Iterator[str]:
    yield f"### `{name}`: {group['title']}"
    yield ""
    yield f"| | {group['unit']} | CPU | times ours | |"
    yield "|---|---|---|---|---|"
    for contestant, figures in group["contestants"].items():
        cpu = "" if figures["cpu"] is None else figure(figures["cpu"])
        said = ", ".join(filter(None, [_ROLES[figures["role"]], figures["note"]]))
        times = _spread(figures.get("times_ours"))
        yield f"| {contestant} | {_spread(figures['value'])} | {cpu} | {times} | {said} |"
    for contestant, reason in group["left_out"].items():
        yield f"| {contestant} | left out: {reason} | | | |"
    yield ""


# -- the picture -----------------------------------------------------------------------------------


def draw(result: Table, path: Path) -> None:
    """A row for each group, a mark for each contestant: times ours, and its quartiles."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    groups = [group for group in result["groups"].values() if _has_rivals(group)]
    with plt.rc_context({"font.family": "DejaVu Sans", "font.size": 9}):
        figure_, axes = plt.subplots(figsize=(11, 0.42 * len(groups) + 1.6), layout="constrained")
        for row, group in enumerate(groups):
            _draw_group(axes, row, group)
        axes.axvline(1, color=_COLOURS["ours"], linewidth=1.5)
        axes.set_xscale("log")
        axes.set_yticks(range(len(groups)), [group["title"] for group in groups])
        axes.set_ylim(len(groups) - 0.5, -0.5)
        axes.set_xlabel("times ours (left of the line: faster than ours)")
        axes.grid(axis="x", color="#e6e6e6", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        for role, label in (("floor", "floor"), ("peer", "peer"), ("lost", "design that lost")):
            axes.plot([], [], "o", color=_COLOURS[role], label=label)
        axes.legend(loc="upper center", bbox_to_anchor=(0.3, -0.03), ncols=3, frameon=False)
        figure_.savefig(path, dpi=110)
        plt.close(figure_)


def _has_rivals(group: Table) -> bool:
    return any(
        figures["role"] != "ours" and "times_ours" in figures
        for figures in group["contestants"].values()
    )


def _draw_group(axes: Axes, row: int, group: Table) -> None:
    for figures in group["contestants"].values():
        times = figures.get("times_ours")
        if figures["role"] == "ours" or times is None or not times["median"]:
            continue
        colour = _COLOURS[figures["role"]]
        axes.plot([times["low"], times["high"]], [row, row], color=colour, linewidth=4, alpha=0.3)
        axes.plot([times["median"]], [row], "o", color=colour, markersize=5)
    peer = _fastest(group, "peer")
    if peer is not None and group["contestants"][peer].get("times_ours", {}).get("median"):
        at = group["contestants"][peer]["times_ours"]["median"]
        axes.annotate(
            peer, (at, row), (0, 5), textcoords="offset points", ha="center", fontsize=6.5
        )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.page", description=__doc__)
    parser.add_argument("--json", type=Path, default=RESULTS, metavar="FILE")
    parser.add_argument("--without-gil", type=Path, default=WITHOUT_GIL, metavar="FILE")
    options = parser.parse_args(argv)
    if not options.json.exists():
        print(f"there is no {options.json}; run: python -m bench.report", file=sys.stderr)
        return 1
    result = json.loads(options.json.read_text())
    other = options.without_gil
    without_gil = json.loads(other.read_text()) if other.exists() else None
    PAGE.write_text(replace_figures(PAGE.read_text(), render(result, without_gil)))
    draw(result, PICTURE)
    print(f"{PAGE.relative_to(HERE.parent)} and {PICTURE.name} are written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
