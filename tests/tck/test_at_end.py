"""The kit on subscribers that process elements only after ``on_complete``."""

from __future__ import annotations

from typing import Any

import pytest

from rstreams_fast.tck import RuleBroken, WhiteboxProbe
from tests.operators import USES
from tests.tck.test_our_operators import StageVerification

CHECKS = (
    "required_exerciseWhiteboxHappyPath",
    "beyond_spec211_signalsFromFreeRunningThreadsMustBeSeenInOrder",
    "beyond_spec213_elementsFromWithinRequestMustBeAccepted",
)


class Last(StageVerification):
    __test__ = False
    silence = 0.01
    over = staticmethod(USES["TakeLast"][1].over)


@pytest.mark.parametrize("check", CHECKS)
def test_said_so_its_elements_are_awaited_after_the_end(check: str) -> None:
    verification = Last()
    verification.timeout = 0.1
    with pytest.raises(RuleBroken, match="the subscriber processed nothing"):
        getattr(verification, CHECKS[0])()
    verification.delivers_at_end = True
    getattr(verification, check)()


@pytest.mark.parametrize("check", CHECKS[1:])
def test_one_that_is_lost_is_missed(check: str) -> None:
    class Loses(Last):
        delivers_at_end = True

        def create_whitebox_subscriber(self, probe: WhiteboxProbe) -> Any:
            lost, register = [True], probe.register_on_next

            def all_but_the_first(element: Any) -> None:
                if not (lost and lost.pop()):
                    register(element)

            probe.register_on_next = all_but_the_first  # type: ignore[method-assign]
            return super().create_whitebox_subscriber(probe)

    with pytest.raises(RuleBroken):
        getattr(Loses(), check)()
