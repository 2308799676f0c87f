"""The official kit on one verification class of ours: its hooks, its settings, its outcomes.

A class is the same that our own kit judges, so both judge the same thing. Here it stands outside
pytest: what its fixtures set up is set up here. Needs a running JVM.
"""

from __future__ import annotations

import time
import traceback
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple

import jpype

from rstreams_fast.tck import Verification
from rstreams_fast.tck.runner import BROKEN, ERROR, KEPT, NOT_APPLICABLE
from tests.jvm_tck import bridge
from tests.jvm_tck.claims import NOT_MET, UNTESTED
from tests.jvm_tck.subjects import fixtures

__all__ = ["BRISK", "IMPATIENT", "PATIENT", "Result", "Waits", "list_names", "run_one", "warm_up"]


class Waits(NamedTuple):
    """How long the kit waits, in milliseconds."""

    expected: int  #: for what must happen
    silence: int  #: for nothing to happen
    poll: int  #: for on_error: a slip in the kit's loop makes it look once, after this time;
    #: if that was too early, the test is run again and it looks after ``expected``
    references: int  #: from a cancel to the collection that must find its subscriber gone (§3.13)


#: Only a failing test uses up the first. The kit's own 100 for each give false failures on a busy
#: machine, and ten tests share one interpreter: there an element has come 3 s late.
PATIENT = Waits(15_000, 100, 1000, 2000)
#: For what is known to be broken.
IMPATIENT = Waits(500, 100, 200, 300)
#: For what is known to be correct and synchronous.
BRISK = Waits(15_000, 1, 20, 100)
#: One official test wants 2 147 483 647 elements and takes eleven: a class that makes its elements
#: beforehand is asked for so many instead.
MOST_ELEMENTS = 10_000
#: What the kit says when it found no error at its one look, long before the time it names is over.
_LOOKED_TOO_EARLY: Final = "Expected onError("

_JAVA_CLASSES: Final = {
    "publisher": "OfPublisher",
    "blackbox": "OfBlackbox",
    "whitebox": "OfWhitebox",
    "processor": "OfProcessor",
}
#: How the kit words its skips, and what each means.
_SKIPS: Final = (
    ("Not verified ", UNTESTED),
    ("Skipped because tested publisher does NOT implement this OPTIONAL", NOT_MET),
    ("Skipping because no error state Publisher provided", NOT_APPLICABLE),
    ("Skipping, because provided Publisher does not pass this *additional*", NOT_MET),
    ("Skipping @Stochastic test", NOT_APPLICABLE),
    ("Unable to run this test, as ", NOT_APPLICABLE),
    ("The Publisher under test only supports ", NOT_APPLICABLE),
)


@dataclass(frozen=True)
class Result:
    """What became of one test of the official kit."""

    name: str
    outcome: str  #: one of the words of ``rstreams_fast.tck.runner``
    message: str  #: the kit's own reason, if not kept
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "seconds": round(self.seconds, 3)}


def list_names(kind: str) -> list[str]:
    """The names of the tests in the jar."""
    found = jpype.JClass(f"jvmtck.Verifications${_JAVA_CLASSES[kind]}").class_
    test = jpype.JClass("org.testng.annotations.Test").class_
    return sorted(
        {str(method.getName()) for method in found.getMethods() if _inherits(method, test)}
    )


def _inherits(method: Any, annotation: Any) -> bool:
    return bool(method.isAnnotationPresent(annotation))


def warm_up(kind: str, make: type[Verification]) -> None:
    """Run every test once, in this thread and without looking for silence.

    JPype wraps each Java class where it first meets it, and must not do that in two threads.
    """
    for name in list_names(kind):
        result = run_one(kind, make, name, BRISK)
        if result.outcome not in (KEPT, UNTESTED):
            raise AssertionError(f"{name} on {make.__name__}, which is correct: {result.message}")


def run_one(kind: str, make: type[Verification], name: str, waits: Waits = PATIENT) -> Result:
    """Run one test on a new instance."""
    start = time.perf_counter()
    try:
        outcome, message = _run(kind, make, name, waits)
        if _LOOKED_TOO_EARLY in message:
            outcome, message = _run(kind, make, name, waits._replace(poll=waits.expected))
    except Exception:  # the class, its fixtures or the bridge: not the kit's judgement
        outcome, message = ERROR, traceback.format_exc()
    return Result(name, outcome, message, time.perf_counter() - start)


def _run(kind: str, make: type[Verification], name: str, waits: Waits) -> tuple[str, str]:
    verification = make()
    verification._make_environment(name)
    with ExitStack() as stack:
        stack.callback(verification.environment.release)
        stack.enter_context(fixtures(verification))
        hooks = Hooks(verification)
        java = jpype.JClass(f"jvmtck.Verifications${_JAVA_CLASSES[kind]}")(
            hooks, _settings(verification, waits)
        )
        if kind in ("blackbox", "whitebox"):
            java.startPublisherExecutorService()
        java.setUp()
        try:
            getattr(java, name)()
            outcome = KEPT, ""
        except jpype.JClass("org.testng.SkipException") as skipped:
            outcome = _skipped(str(skipped.getMessage()))
        except jpype.java.lang.Throwable as failed:
            outcome = BROKEN, _describe(failed)
        finally:
            if kind != "publisher":
                java.shutdownPublisherExecutorService()
        return (ERROR, hooks.failed) if hooks.failed else outcome


def _skipped(reason: str) -> tuple[str, str]:
    for begin, outcome in _SKIPS:
        if reason.startswith(begin):
            return outcome, reason
    return ERROR, f"a skip that is new to us: {reason}"


def _describe(failed: Any) -> str:
    """The exception, and where in the kit it was raised."""
    frames = [str(frame) for frame in failed.getStackTrace()]
    kit = [frame for frame in frames if "reactivestreams" in frame][:3]
    return "\n".join([str(failed.toString()), *(f"  at {frame}" for frame in kit)])


def _settings(verification: Any, waits: Waits) -> Any:
    unbounded = 2**63 - 1
    return jpype.JClass("jvmtck.Verifications$Settings")(
        *waits,
        getattr(verification, "max_elements", unbounded - 1),
        getattr(verification, "bounded_depth", 1),
        False,  # no test is skipped for being stochastic
        getattr(verification, "buffer_size", 16),
        getattr(verification, "max_supported_subscribers", unbounded),
        getattr(verification, "coordinated_emission", False),
    )


@jpype.JImplements("jvmtck.Verifications$Hooks", deferred=True)
class Hooks:
    """A verification's hooks, as the official verifications ask for them."""

    def __init__(self, verification: Any) -> None:
        self._verification = verification
        self._made: Any = None  # by create_subscriber
        self.failed = ""

    def _hook(self, name: str, *arguments: Any) -> Any:
        try:
            return self._verification._hook(name, *arguments)
        except Exception as raised:
            self.failed = self.failed or str(raised)
            raise bridge.to_java_error(raised) from None

    def _call(self, function: Any, *arguments: Any) -> Any:
        return self._verification.environment.call(function, *arguments)

    def _publisher(self, publisher: Any) -> Any:
        return None if publisher is None else bridge.PythonPublisher(publisher, self._call)

    @jpype.JOverride
    def createPublisher(self, elements: int) -> Any:
        return self._publisher(self._hook("create_publisher", min(int(elements), MOST_ELEMENTS)))

    @jpype.JOverride
    def createFailedPublisher(self) -> Any:
        return self._publisher(self._hook("create_failed_publisher"))

    @jpype.JOverride
    def createSubscriber(self) -> Any:
        self._made = self._hook("create_subscriber")
        return bridge.PythonSubscriber(self._made, self._call)

    @jpype.JOverride
    def triggerRequest(self, subscriber: Any) -> None:
        self._hook("trigger_request", self._made)

    @jpype.JOverride
    def createWhiteboxSubscriber(self, probe: Any) -> Any:
        made = self._hook("create_whitebox_subscriber", bridge.JavaProbe(probe, self._call))
        return bridge.PythonSubscriber(made, self._call)

    @jpype.JOverride
    def createIdentityProcessor(self, buffer_size: int) -> Any:
        made = self._hook("create_identity_processor", int(buffer_size))
        return bridge.PythonProcessor(made, self._call)

    @jpype.JOverride
    def createElement(self, element: int) -> Any:
        made = self._hook("create_element", int(element))
        if not isinstance(made, int | float | str):
            self.failed = f"create_element made {made!r}, which does not come back from Java"
        return made
