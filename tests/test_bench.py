"""How measurements become ratios, verdicts and a page; the measuring itself is ``make bench``."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bench import page, report
from bench.groups import GROUPS
from bench.measure import Contestant, Group, Spread, Timing, WrongResultError
from bench.targets import TARGETS, Round, judge, rounds_of

ROLES = {group.name: {c.name: c.role for c in group.contestants} for group in GROUPS}


def measured(**walls: float) -> dict[str, dict[str, Timing]]:
    """A round in which everybody takes 100 ns, but for the groups named."""
    return {
        group: {name: Timing(walls.get(group.replace("-", "_"), 100.0), 50.0) for name in names}
        for group, names in ROLES.items()
    }


def test_every_target_names_who_is_measured() -> None:
    (only,) = rounds_of([measured(maps_11=1100.0)], ROLES)
    for target in TARGETS:
        assert isinstance(target.figure(only), float), target.what


def test_names_of_contestants_are_unique_within_their_group() -> None:
    assert len({group.name for group in GROUPS}) == len(GROUPS)
    for group in GROUPS:
        assert len(ROLES[group.name]) == len(group.contestants)
        assert "ours" in ROLES[group.name].values()


def test_the_median_of_the_ratios_of_each_round_decides() -> None:
    rounds = [measured(maps_11=1100.0) for _ in range(3)]
    for each, (ours, theirs) in zip(rounds, [(1, 30), (100, 900), (2, 24)], strict=True):
        each["boundary"]["ours"] = Timing(ours, ours)
        each["boundary"]["queue.Queue(1024)"] = Timing(theirs, 5 * ours)
    (target,) = (
        t
        for t in judge(rounds_of(rounds, ROLES))
        if t["path"] == "publish_on, 1024, thread to thread" and t["what"] == "queue.Queue / ours"
    )
    assert target["measured"] == {"median": 12.0, "low": 10.5, "high": 21.0}
    assert target["by_cpu"] == {"median": 5.0, "low": 5.0, "high": 5.0}
    assert target["met"] is True


def test_the_fastest_floor_is_the_same_one_in_all_rounds() -> None:
    rounds = [measured() for _ in range(3)]
    for each, loop in zip(rounds, (90.0, 90.0, 200.0), strict=True):
        each["fused"]["hand-written loop"] = Timing(loop, loop)
    assert [each.floor("fused") for each in rounds_of(rounds, ROLES)] == [90.0, 90.0, 200.0]


def test_what_was_not_measured_is_neither_met_nor_missed() -> None:
    for target in judge([Round({}, {})]):
        assert target["measured"] is None
        assert target["met"] is None


def test_a_wrong_result_is_no_time() -> None:
    wrong = Contestant("wrong", "ours", 3, lambda n: (lambda: n - 1, n))
    with pytest.raises(WrongResultError, match="wrong: 2 instead of 3"):
        wrong.time_once()


def test_contestants_alternate() -> None:
    ran: list[str] = []

    def contestant(name: str) -> Contestant:
        return Contestant(name, "ours", 1, lambda n: ((lambda: ran.append(name)), None))

    group = Group("abc", "use", "", [contestant(name) for name in "abc"])
    rounds, left_out = report.measure([group], 3, first=True)
    assert "".join(ran) == "abc" + "abc" + "bca" + "cab"  # a warm-up, then the rounds
    assert [set(each["abc"]) for each in rounds] == [set("abc")] * 3
    assert left_out == {}


@pytest.fixture
def result() -> dict[str, Any]:
    """What the report writes."""
    rounds = [measured(maps_11=1100.0) for _ in range(3)]
    groups = {g.name: report.summary(g, rounds, {"absent": "no wheel"}) for g in GROUPS}
    answer = {
        "machine": report.machine() | {"load at the end": 0.1},
        "processes": 1,
        "rounds": 3,
        "groups": groups,
        "targets": judge(rounds_of(rounds, ROLES)),
    }
    text = json.dumps(answer)
    assert "NaN" not in text
    return dict(json.loads(text))


def test_the_page_says_all_that_was_measured(result: dict[str, Any]) -> None:
    text = page.render(result)
    for group, names in ROLES.items():
        assert f"### `{group}`" in text
        assert all(f"| {name} |" in text for name in names)
    assert text.count("left out: no wheel") == len(GROUPS)
    assert text.count("| met |") + text.count("| **not met** |") == len(TARGETS)


def test_what_was_measured_without_a_gil_stands_beside(result: dict[str, Any]) -> None:
    assert "Without a GIL" not in page.render(result)
    other = json.loads(json.dumps(result))
    other["machine"]["python"] = "CPython 3.13.5, free-threaded"
    del other["groups"]["idle"], result["groups"]["ring"]
    title = other["groups"]["boundary"]["title"]
    ours = other["groups"]["boundary"]["contestants"]["ours"]
    ours["value"] = {"median": 77.0, "low": 77.0, "high": 77.0}
    text = page.render(result, other)
    _, table = text.split("## Without a GIL: CPython 3.13.5, free-threaded")
    rows = table.partition("\n## ")[0].splitlines()
    (row,) = [row for row in rows if row.startswith(f"| {title} |")]
    assert row.startswith(f"| {title} | 100 | 77.0 ns per element | 1.00 (")
    (unknown,) = [row for row in rows if row.startswith(f"| {other['groups']['ring']['title']} |")]
    assert unknown.split(" | ")[1].strip() == ""
    assert sum(row.startswith("| ") for row in rows) == 1 + len(GROUPS) - 1


def test_only_the_figures_of_the_page_are_written() -> None:
    old = f"before\n{page.BEGIN}\nold\n{page.END}\nafter\n"
    new = page.replace_figures(old, "new\n")
    assert new == f"before\n{page.BEGIN}\n\nnew\n\n{page.END}\nafter\n"
    assert page.replace_figures(new, "new") == new
    with pytest.raises(ValueError, match="lost its marks"):
        page.replace_figures("no marks", "new")


def test_the_readme_has_its_marks() -> None:
    assert page.replace_figures(page.PAGE.read_text(), "new")


def test_spreads() -> None:
    assert Spread.of([3.0, 1.0, 2.0]) == Spread(2.0, 1.5, 2.5)
    assert Spread.of([7.0]) == Spread(7.0, 7.0, 7.0)
    assert str(Spread(123.4, 12.34, 1.234)) == "123 [12.3 .. 1.23]"
