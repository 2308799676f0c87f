"""How measurements become ratios, verdicts and a page; the measuring itself is ``make bench``."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bench import page, report
from bench.groups import GROUPS
from bench.measure import Contestant, Group, Spread, Timing, WrongResultError
from bench.targets import FLOOR, TARGETS, Round, judge, rounds_of

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
    assert [each.of("fused", FLOOR) for each in rounds_of(rounds, ROLES)] == [90.0, 90.0, 200.0]


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


def test_the_page_has_a_row_for_each_group_of_its_sections(result: dict[str, Any]) -> None:
    shown = [name for names in page.SECTIONS.values() for name in names]
    assert len(set(shown)) == len(shown)
    text = page.render({"gil": result})
    for name in shown:
        assert f"\n| {result['groups'][name]['title']} | 1" in text, name
    assert f"other {len(GROUPS) - len(shown)} groups" in text
    missed = [target for target in result["targets"] if not target["met"]]
    assert text.count(" | at most ") + text.count(" | at least ") == len(missed)


def test_the_fastest_floor_and_peer_stand_in_the_row(result: dict[str, Any]) -> None:
    group = result["groups"]["boundary"]
    group["contestants"]["janus"]["times_ours"] = {"median": 0.5, "low": 0.25, "high": 2.0}
    text = page.render({"gil": result})
    (row,) = [row for row in text.splitlines() if row.startswith(f"| {group['title']} |")]
    assert row.endswith("| 1.00 the same calls in one thread | 0.50 [0.25 .. 2.00] janus |")
    assert "without a GIL" not in row


def test_what_was_measured_without_a_gil_stands_beside(result: dict[str, Any]) -> None:
    other = json.loads(json.dumps(result))
    del other["groups"]["idle"]
    ours = other["groups"]["boundary"]["contestants"]["ours"]
    ours["value"] = {"median": 77.0, "low": 77.0, "high": 77.0}
    text = page.render({"gil": result, "free-threaded": other})
    rows = {name: group["title"] for name, group in result["groups"].items()}
    assert f"| {rows['boundary']} | 100 ns/element; without a GIL 77.0 |" in text
    assert f"| {rows['idle']} | 100 bytes each |" in text


def test_the_page_is_made_from_the_file_of_figures() -> None:
    text = page.FIGURES.read_text()
    runs = json.loads(text)
    assert page.dump(runs) == text
    current = page.PAGE.read_text()
    assert page.replace_figures(current, page.render(runs)) == current
    assert len(current.splitlines()) < 150


def test_only_the_figures_of_the_page_are_written() -> None:
    old = f"before\n{page.BEGIN}\nold\n{page.END}\nafter\n"
    new = page.replace_figures(old, "new\n")
    assert new == f"before\n{page.BEGIN}\n\nnew\n\n{page.END}\nafter\n"
    assert page.replace_figures(new, "new") == new
    with pytest.raises(ValueError, match="lost its marks"):
        page.replace_figures("no marks", "new")


def test_spreads() -> None:
    assert Spread.of([3.0, 1.0, 2.0]) == Spread(2.0, 1.5, 2.5)
    assert Spread.of([7.0]) == Spread(7.0, 7.0, 7.0)
    assert str(Spread(123.4, 12.34, 1.234)) == "123 [12.3 .. 1.23]"
