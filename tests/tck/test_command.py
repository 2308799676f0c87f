"""``rstreams-fast tck``: what it takes, what it says, how it exits."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn

import pytest

import rstreams_fast as rf
from rstreams_fast.cli import main
from rstreams_fast.tck import PublisherVerification
from tests.broken.processors import CorrectProcessor
from tests.broken.publishers import CorrectSubscription, IgnoresDemand, takes, with_subscription
from tests.broken.subscribers import CorrectSubscriber, CorrectWhitebox
from tests.helpers import run_python

HERE = "tests.tck.test_command"
SPEC101 = "required_spec101_subscriptionRequestMustResultInTheCorrectNumberOfProducedElements"


class Kept:
    """A class with a hook, and no inheritance."""

    silence = 0.02

    def create_publisher(self, elements: int) -> Any:
        return rf.range_(elements)


def kept(**members: Any) -> type[Kept]:
    """One like it, but for these members."""
    return type("Target", (Kept,), members)


def calls(call: Callable[..., object], *arguments: object, **more: object) -> type[Kept]:
    """One whose hook makes this call instead."""
    return kept(create_publisher=lambda _self, _elements: call(*arguments, **more))


def publishes(subscription: type[CorrectSubscription], **members: Any) -> type[Kept]:
    """One whose publishers give such subscriptions."""
    publisher = with_subscription(subscription)
    return kept(create_publisher=lambda _self, elements: publisher(elements), **members)


def asks(subscriber: type[CorrectSubscriber], **members: Any) -> type:
    """One that makes such subscribers; of a puppet, those of a whitebox."""
    hook = f"create_{'whitebox_' * issubclass(subscriber, CorrectWhitebox)}subscriber"
    return type("Target", (), {hook: lambda _self, *probe: subscriber(*probe), **members})


def raises(kind: type[BaseException], *arguments: object) -> NoReturn:
    raise kind(*arguments)


Broken = publishes(IgnoresDemand)
RaisesForText = publishes(takes("1"))
AsksForStrict = kept(fail_on="strict")
WrongSetting = kept(max_elements="3")
HasAllTime = kept(timeout=threading.TIMEOUT_MAX)
HasNoFailedPublisher = kept(create_failed_publisher=None)
AsksItsServer = kept(timeout=property(lambda _self: raises(OSError, "no connection")))
HasAServerBehindItsHook = kept(create_publisher=property(lambda _self: raises(OSError)))
CannotRun = calls(raises, OSError, "no connection")
LeavesWhenAsked = calls(sys.exit, 0)
SkipsWhenAsked = calls(pytest.skip, "no server")
RaisesCtrlCWhenAsked = calls(raises, KeyboardInterrupt)
SubscribeLeaves = calls(SimpleNamespace, subscribe=lambda _subscriber: sys.exit(3))
#: It breaks a rule, and the message shows its element.
SpeaksJapanese = calls(SimpleNamespace, subscribe=lambda one: one.on_next("\u65e5\u672c"))


class EndsItsThread(Kept):
    def create_publisher(self, elements: int) -> Any:
        thread = threading.Thread(target=[].pop)
        thread.start()
        thread.join()
        return super().create_publisher(elements)


class IsInterrupted(Kept):
    def create_publisher(self, elements: int) -> Any:
        signal.raise_signal(signal.SIGINT)  # which the main thread handles
        return super().create_publisher(elements)


class WrongVerification(PublisherVerification):
    __test__ = False
    timeout = -1

    create_publisher = Kept.create_publisher


class NeedsArguments:
    def __init__(self, address: str) -> None:
        self.address = address

    create_publisher = Kept.create_publisher


class NeedsArgumentsToVerify(NeedsArguments, PublisherVerification):
    __test__ = False


class LeavesWhenMade(Kept):
    def __init__(self) -> None:
        sys.exit(0)


class Interrupted(CorrectSubscription):
    def request(self, n: Any, /) -> None:
        raise KeyboardInterrupt


class Cancelled(CorrectSubscriber):
    def on_next(self, element: Any, /) -> None:
        raise asyncio.CancelledError


class AskingForZero(CorrectSubscriber):
    def begin(self) -> None:
        self.ask(0)


class Failing(CorrectWhitebox):
    def trigger_request(self, n: int, /) -> None:
        raise OSError("no connection")


class Async(CorrectWhitebox):
    async def trigger_request(self, n: int, /) -> None:  # type: ignore[override]
        self.ask(n)


RequestRaisesCtrlC = publishes(Interrupted)
RequestRaisesCtrlCInALoop = publishes(Interrupted, asyncio_bound=True)
OnNextIsCancelled = asks(Cancelled, silence=0.02)
RequestsZero = asks(AskingForZero, silence=0.02, timeout=0.3)
PuppetFails = asks(Failing, timeout=1.0)
PuppetIsAsync = asks(Async, timeout=1.0)


class Nothing:
    pass


class AllFour(Kept):
    create_subscriber = staticmethod(CorrectSubscriber)
    create_whitebox_subscriber = staticmethod(CorrectWhitebox)
    create_identity_processor = staticmethod(CorrectProcessor)


instance = Kept()


def tck(*arguments: str) -> int:
    return main(["tck", *arguments])


@pytest.mark.parametrize("target", [f"{HERE}:Kept", f"{HERE}:instance"])
def test_what_keeps_the_rules_exits_with_0(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert tck(target) == 0
    said = capsys.readouterr().out
    assert "publisher: 86 checks" in said
    assert "broken at grade strict (told, no failure)" in said
    assert "check:    beyond_spec110_theSameSubscriberTwiceShouldBeRejected (grade strict)" in said
    assert said.splitlines()[-1] == "81 kept, 1 broken (strict), 4 not applicable"


@pytest.mark.parametrize(
    ("options", "status"),
    [((), 0), (("--grade", "spec"), 0), (("--grade", "python"), 1), (("--strict",), 1)],
)
def test_the_grade_decides_what_is_a_failure(options: tuple[str, ...], status: int) -> None:
    only = ("--only", "3.9", "--only", "beyond_spec110_*")
    assert tck(f"{HERE}:RaisesForText", *only, *options) == status
    assert tck(f"{HERE}:Kept", *only, *options) == (status if "--strict" in options else 0)


def test_a_target_may_ask_for_a_grade() -> None:
    assert tck(f"{HERE}:AsksForStrict", "--only", "1.10") == 1
    assert tck(f"{HERE}:AsksForStrict", "--only", "1.10", "--grade", "spec") == 0


def test_every_broken_rule_is_told_once_in_the_order_to_mend(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert tck(f"{HERE}:Broken") == 1
    said = capsys.readouterr().out
    assert "broken at grade spec (a failure), the first to mend first:" in said
    assert said.count("§1.1 is broken") == 1
    assert "not judged:" in said
    assert "needs elements on request; see required_spec101" in said


def test_a_module_may_have_the_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("a_module_with_hooks")
    module.create_publisher = rf.range_  # type: ignore[attr-defined]
    module.timeout = lambda: 1  # type: ignore[attr-defined] # not a setting: ignored
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert tck(module.__name__, "--only", "1.1") == 0


def test_what_breaks_a_rule_exits_with_1_and_says_how(capsys: pytest.CaptureFixture[str]) -> None:
    assert tck(f"{HERE}:Broken", "--only", SPEC101) == 1
    said = capsys.readouterr().out
    assert f"check:    {SPEC101} (grade spec)" in said
    assert "at most 1 elements, as requested" in said
    assert "subscriber.on_next(1)" not in said
    assert tck(f"{HERE}:Broken", "--only", SPEC101, "--verbose") == 1
    assert "subscriber.on_next(1)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["no_such_module"], "cannot load no_such_module: ModuleNotFoundError"),
        ([f"{HERE}:NoSuchClass"], "cannot load"),
        ([f"{HERE}:Nothing"], "Nothing has none of the hooks create_publisher"),
        ([f"{HERE}:NeedsArguments"], "NeedsArguments() raised TypeError"),
        ([f"{HERE}:NeedsArgumentsToVerify"], "NeedsArgumentsToVerify() raised TypeError"),
        ([f"{HERE}:AsksItsServer"], "tck: the attribute timeout raised OSError('no connection') ("),
        ([f"{HERE}:HasAServerBehindItsHook"], "tck: the attribute create_publisher raised OSError"),
        ([f"{HERE}:LeavesWhenMade"], "tck: LeavesWhenMade() raised SystemExit(0) ("),
        ([f"{HERE}:WrongSetting"], "tck: max_elements must be an int >= 0, is '3'"),
        ([f"{HERE}:WrongVerification"], "tck: timeout must be seconds, a finite number > 0, is -1"),
        ([f"{HERE}:Kept", "--only", "processor"], "has no create_identity_processor"),
        ([f"{HERE}:Kept", "--only", "no_such_test"], "no such check"),
        ([f"{HERE}:Kept", "--only", "1.4"], "nothing was verified"),
        ([f"{HERE}:Kept", "--only", "3.7", "--json", "/no/such/folder/x.json"], "--json"),
    ],
)
def test_what_cannot_run_exits_with_2_and_says_why(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tck(*arguments) == 2
    said = capsys.readouterr()
    assert says in said.err
    assert ("checks of" in said.out) == ("nothing was verified" in says)  # else before any test


@pytest.mark.parametrize(
    ("target", "rule", "says"),
    [
        ("CannotRun", "1.2", "create_publisher(3) raised OSError('no connection')"),
        ("LeavesWhenAsked", "1.2", "create_publisher(3) raised SystemExit(0)"),
        ("SkipsWhenAsked", "1.2", "Skipped: no server"),
        ("RaisesCtrlCWhenAsked", "1.2", "create_publisher(3) raised KeyboardInterrupt()"),
        ("PuppetFails", "3.8", "the puppet's trigger_request(2) raised OSError('no connection')"),
        ("PuppetIsAsync", "3.8", "trigger_request is a coroutine function: set asyncio_bound"),
    ],
)
def test_a_hook_that_fails_exits_with_2(
    target: str, rule: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tck(f"{HERE}:{target}", "--only", rule) == 2
    said = capsys.readouterr().out
    assert says in said
    assert (f"({__file__}:" in said) == ("raised" in says)  # where


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import sys\nsys.exit(0)\n", "SystemExit: 0 ({file}:2, in <module>)"),
        ("x = {{}}['host']\n", "KeyError: 'host' ({file}:1, in <module>)"),
        ("import no_such_module\n", "No module named 'no_such_module' ({file}:1, in <module>)"),
        ("def __getattr__(name):\n    return {{}}[name]\n", "({file}:2, in __getattr__)"),
    ],
)
def test_a_module_that_fails_exits_with_2_and_says_where(
    text: str,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "a_module_that_fails.py"
    file.write_text(text.format())
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, file.stem, raising=False)
    assert tck(file.stem) == 2
    assert says.format(file=file) in capsys.readouterr().err


@pytest.mark.parametrize(
    ("target", "check", "says"),
    [
        ("RequestRaisesCtrlC", SPEC101, "§3.16 is broken"),
        ("RequestRaisesCtrlC", SPEC101, "it raised KeyboardInterrupt()"),
        ("RequestRaisesCtrlCInALoop", SPEC101, "the call raised KeyboardInterrupt()"),
        ("SubscribeLeaves", SPEC101, "§1.9 is broken"),
        ("SubscribeLeaves", SPEC101, "it raised SystemExit(3)"),
        ("OnNextIsCancelled", "*elementsFromWithin*", "it raised CancelledError()"),
        ("RequestsZero", "required_spec201_*", "§3.9 is broken: request(n) needs n >= 1"),
    ],
)
def test_what_an_implementation_raises_or_calls_breaks_its_rule(
    target: str, check: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tck(f"{HERE}:{target}", "--only", check) == 1
    assert says in capsys.readouterr().out


@pytest.mark.parametrize(
    ("target", "rule", "says"),
    [("HasNoFailedPublisher", "1.9", " not applicable"), ("HasAllTime", "1.1", " kept")],
)
def test_what_a_target_may_say(
    target: str, rule: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tck(f"{HERE}:{target}", "--only", rule) == 0
    assert says in capsys.readouterr().out


def test_ctrl_c_exits_with_130() -> None:
    command = ("-m", "rstreams_fast.cli", "tck", f"{HERE}:IsInterrupted", "--only", "1.2")
    done = run_python(*command, check=False)
    assert done.returncode == 130
    assert done.stderr == "rstreams-fast tck: stopped by Ctrl-C\n"


def test_what_the_terminal_cannot_show_is_escaped() -> None:
    command = ("-m", "rstreams_fast.cli", "tck", f"{HERE}:SpeaksJapanese", "--only", "1.2")
    done = run_python("-X", "utf8=0", *command, check=False, env={"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 1, done.stderr
    assert "on_next('\\u65e5\\u672c')" in done.stdout


def test_what_ends_a_thread_of_the_implementation_is_not_shown() -> None:
    command = ("-m", "rstreams_fast.cli", "tck", f"{HERE}:EndsItsThread", "--only", "1.1")
    assert run_python(*command).stderr == ""


def test_only_takes_kinds_rules_and_patterns(capsys: pytest.CaptureFixture[str]) -> None:
    assert tck(f"{HERE}:AllFour", "--only", "blackbox", "--only", "2.3", "-v") == 0
    said = capsys.readouterr().out
    assert "blackbox: 2 checks" in said
    assert said.count("kept: required_spec203_") == 2
    assert "publisher:" not in said


def test_json_holds_every_result(tmp_path: Path) -> None:
    file = tmp_path / "tck.json"
    assert tck(f"{HERE}:AllFour", "--only", "*spec2*", "--only", "3.9", "--json", str(file)) == 0
    report = json.loads(file.read_text())
    assert report["exit_status"] == 0
    assert report["verifications"].keys() == {"publisher", "blackbox", "whitebox", "processor"}
    first = report["verifications"]["blackbox"][0]
    assert first["name"].startswith("required_spec201_")
    assert first["rule"] == "2.1"
    assert first["outcome"] == "kept"
    assert sum(report["counts"].values()) == sum(map(len, report["verifications"].values()))
