"""``rstreams-fast tck``: what it takes, what it says, how it exits."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import rstreams_fast as rf
from rstreams_fast.cli import main
from rstreams_fast.tck import PublisherVerification
from tests.broken.processors import CorrectProcessor
from tests.broken.publishers import IgnoresDemand, with_subscription
from tests.broken.subscribers import CorrectSubscriber, CorrectWhitebox

HERE = "tests.tck.test_command"
SPEC101 = "required_spec101_subscriptionRequestMustResultInTheCorrectNumberOfProducedElements"


class Kept:
    """A class with a hook, and no inheritance."""

    silence = 0.02

    def create_publisher(self, elements: int) -> Any:
        return rf.range_(elements)


class Broken:
    silence = 0.02

    def create_publisher(self, elements: int) -> Any:
        return with_subscription(IgnoresDemand)(elements)


class CannotRun:
    def create_publisher(self, elements: int) -> Any:
        raise OSError("no connection")


class WrongSetting(Kept):
    max_elements = "3"


class WrongVerification(PublisherVerification):
    __test__ = False
    timeout = -1

    create_publisher = Kept.create_publisher


class NeedsArguments:
    def __init__(self, address: str) -> None:
        self.address = address

    create_publisher = Kept.create_publisher


class Nothing:
    pass


class AllFour:
    silence = 0.02

    def create_publisher(self, elements: int) -> Any:
        return rf.range_(elements)

    def create_subscriber(self) -> Any:
        return CorrectSubscriber()

    def create_whitebox_subscriber(self, probe: Any) -> Any:
        return CorrectWhitebox(probe)

    def create_identity_processor(self, buffer_size: int) -> Any:
        return CorrectProcessor(buffer_size)


instance = Kept()


def tck(*arguments: str) -> int:
    return main(["tck", *arguments])


@pytest.mark.parametrize("target", [f"{HERE}:Kept", f"{HERE}:instance"])
def test_what_keeps_the_rules_exits_with_0(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert tck(target) == 0
    said = capsys.readouterr().out
    assert "publisher: 75 tests" in said
    assert "optional: not met: beyond_optional_spec110" in said
    assert "broken" not in said.splitlines()[-1]


def test_a_module_may_have_the_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("a_module_with_hooks")
    module.create_publisher = rf.range_  # type: ignore[attr-defined]
    module.timeout = lambda: 1  # type: ignore[attr-defined] # not a setting: ignored
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert tck(module.__name__, "--only", "1.1") == 0


def test_what_breaks_a_rule_exits_with_1_and_says_how(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert tck(f"{HERE}:Broken", "--only", SPEC101) == 1
    said = capsys.readouterr().out
    assert f"broken: {SPEC101}" in said
    assert "at most 1 elements, as requested" in said
    assert "subscriber.on_next(1)" in said


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["no_such_module"], "cannot load no_such_module: ModuleNotFoundError"),
        ([f"{HERE}:NoSuchClass"], "cannot load"),
        ([f"{HERE}:Nothing"], "Nothing has none of the hooks create_publisher"),
        ([f"{HERE}:NeedsArguments"], "NeedsArguments() raised TypeError"),
        ([f"{HERE}:WrongSetting"], "tck: max_elements must be an int >= 0, is '3'"),
        ([f"{HERE}:WrongVerification"], "tck: timeout must be seconds, a finite number > 0, is -1"),
        ([f"{HERE}:Kept", "--only", "processor"], "has no create_identity_processor"),
        ([f"{HERE}:Kept", "--only", "no_such_test"], "no such test"),
        ([f"{HERE}:Kept", "--only", "untested_*"], "nothing was verified"),
        ([f"{HERE}:Kept", "--only", "3.7", "--json", "/no/such/folder/x.json"], "--json"),
    ],
)
def test_what_cannot_run_exits_with_2_and_says_why(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tck(*arguments) == 2
    said = capsys.readouterr()
    assert says in said.err
    assert ("tests of" in said.out) == ("nothing was verified" in says)  # else before any test


def test_a_hook_that_raises_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert tck(f"{HERE}:CannotRun", "--only", "1.1") == 2
    assert "create_publisher(5) raised OSError('no connection')" in capsys.readouterr().out


def test_only_takes_kinds_rules_and_patterns(capsys: pytest.CaptureFixture[str]) -> None:
    assert tck(f"{HERE}:AllFour", "--only", "blackbox", "--only", "2.3", "-v") == 0
    said = capsys.readouterr().out
    assert "blackbox: 2 tests" in said
    assert said.count("kept: required_spec203_blackbox") == 2
    assert "publisher:" not in said


def test_json_holds_every_result(tmp_path: Path) -> None:
    file = tmp_path / "tck.json"
    assert tck(f"{HERE}:AllFour", "--only", "*spec2*", "--only", "3.9", "--json", str(file)) == 0
    report = json.loads(file.read_text())
    assert report["exit_status"] == 0
    assert report["verifications"].keys() == {"publisher", "blackbox", "whitebox", "processor"}
    first = report["verifications"]["blackbox"][0]
    assert first["name"].startswith("required_spec201_blackbox")
    assert first["rule"] == "2.1"
    assert first["outcome"] == "kept"
    assert sum(report["counts"].values()) == sum(map(len, report["verifications"].values()))
