"""Publishers written in Java, for our kit to judge, and what it finds in them."""

from __future__ import annotations

from typing import Any, Final

import jpype

from rstreams_fast.tck import Check, PublisherVerification, list_checks
from rstreams_fast.tck.runner import run
from tests.jvm_tck.bridge import JavaPublisher

__all__ = ["JAVA_PUBLISHERS", "NOT_ASKED", "judge"]

#: Not asked of Java's: its ``request`` takes a long and its ``subscribe`` a Subscriber, and a cycle
#: through both heaps, from subscriber to subscription and back, is collected by neither (§3.13).
NOT_ASKED: Final = (
    "beyond_spec106_afterTheEndInvalidRequestsMustBeNops",
    "beyond_spec309_aRequestOfNoIntShouldSignalATypeError",
    "beyond_spec109_subscribeShouldRefuseWhatIsNoSubscriber",
    "beyond_spec317_aRequestThatFitsNoLongShouldCountAsUnbounded",
)
_EXAMPLES = "org.reactivestreams.example.unicast."


class _OfJava(PublisherVerification):
    __test__ = False
    timeout = 10.0  # a correct one does not use it up, and the machine may be busy

    def make(self, elements: int) -> Any:
        raise NotImplementedError

    def create_publisher(self, elements: int) -> Any:
        return JavaPublisher(self.make(elements))


class RangePublisher(_OfJava):
    """Of reactive-streams-examples 1.0.4."""

    def make(self, elements: int) -> Any:
        return jpype.JClass(_EXAMPLES + "RangePublisher")(1, elements)


class AsyncIterablePublisher(_OfJava):
    """Of reactive-streams-examples 1.0.4, as it comes: up to 1024 elements at once."""

    batch = 1024
    silence = 0.2  # its own threads may have to wait for the machine

    def make(self, elements: int) -> Any:
        numbers = jpype.java.util.ArrayList(range(elements))
        executor = jpype.java.util.concurrent.ForkJoinPool.commonPool()
        return jpype.JClass(_EXAMPLES + "AsyncIterablePublisher")(numbers, self.batch, executor)


class AsyncIterablePublisherInSmallBatches(AsyncIterablePublisher):
    """The same, up to three elements at once."""

    batch = 3


class Countdown(_OfJava):
    """A few lines of Java, as publishers are often written first."""

    timeout = 2.0  # it is synchronous; this much is for the kit's own threads on a busy machine

    def make(self, elements: int) -> Any:
        return jpype.JClass("jvmtck.Countdown")(elements)


JAVA_PUBLISHERS: Final = (
    RangePublisher,
    AsyncIterablePublisher,
    AsyncIterablePublisherInSmallBatches,
    Countdown,
)


def judge(names: list[str]) -> dict[str, Any]:
    """Every check of our kit that applies, on those of these names; on all if there are none."""
    return {
        made.__name__: {
            "kind": "publisher",
            "tests": [result.as_dict() for result in run(made, _checks(made))],
        }
        for made in JAVA_PUBLISHERS
        if not names or made.__name__ in names
    }


def _checks(made: type[_OfJava]) -> list[Check]:
    return [
        check for check in list_checks(made) if check.rule != "3.13" and check.name not in NOT_ASKED
    ]
