"""The broken implementations of ``tests/broken`` that the official kit rejects, and by which test."""

# ruff: noqa: E501 (the names are the official kit's)

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from rstreams_fast.tck import Verification
from tests.broken.processors import processors
from tests.broken.publishers import publishers
from tests.broken.registry import Case
from tests.broken.subscribers import blackbox, whitebox
from tests.broken.test_rejected import (
    OfCorrectProcessor,
    OfCorrectPublisher,
    OfCorrectSubscriber,
    OfCorrectWhitebox,
)

__all__ = ["CORRECT", "HANGS", "SEEN", "Broken", "list_broken", "list_seen"]

#: The verification of the correct one in each group, which broken ones differ from by one line.
CORRECT: Final[dict[str, type[Verification]]] = {
    "publisher": OfCorrectPublisher,
    "blackbox": OfCorrectSubscriber,
    "whitebox": OfCorrectWhitebox,
    "processor": OfCorrectProcessor,
}
#: By kind: each official test, and the classes that it rejects. Of several tests, the one that is
#: about the rule broken; where none is, another one that notices.
SEEN: Final[dict[str, dict[str, str]]] = {
    "publisher": {
        "required_spec101_subscriptionRequestMustResultInTheCorrectNumberOfProducedElements": "OneTooMany OneBeforeAnyRequest IgnoresDemand GivesNothing DelaysItsDemandAway",
        "required_spec102_maySignalLessThanRequestedAndTerminateSubscription": "EndsOnlyWithoutDemand",
        "required_spec105_mustSignalOnCompleteWhenFiniteStreamTerminates": "NeverCompletes CompletesTwice",
        "required_createPublisher3MustProduceAStreamOfExactly3Elements": "OneTooFew",
        "required_createPublisher1MustProduceAStreamOfExactly1Element": "OneMoreThanItSays NoneInMidStream",
        "optional_spec105_emptyStreamMustTerminateBySignallingOnComplete": "EmptyCompletesWithoutSubscription",
        "stochastic_spec103_mustSignalOnMethodsSequentially": "EmitsFromThreads",
        "optional_spec104_mustSignalOnErrorWhenFails": "FailedRaises",
        "required_spec109_mayRejectCallsToSubscribeIfPublisherIsUnableOrUnwillingToServeThemRejectionMustTriggerOnErrorAfterOnSubscribe": "FailedIsSilent FailedForgetsOnSubscribe",
        "required_spec313_cancelMustMakeThePublisherEventuallyDropAllReferencesToTheSubscriber": "StillChecks TenMoreAfterCancel ServesOneAtATime RegistryByHash KeepsAll CancelSetsAFlagOnly",
        "required_spec107_mustNotEmitFurtherSignalsOnceOnCompleteHasBeenSignalled": "ServesOnAfterTheEnd",
        "required_spec312_cancelMustMakeThePublisherToEventuallyStopSignaling": "RunsAway",
        "required_spec109_subscribeThrowNPEOnNullSubscriber": "TakesNone StumblesOverNone TakesAnything RegistryWithAGap",
        "required_spec109_mustIssueOnSubscribeForNonNullSubscriber": "SaysNothing CompletesFirst EmitsFirst FailsFirst SubscribeRaises SubscribesTwice",
        "optional_spec111_multicast_mustProduceTheSameElementsInTheSameSequenceToAllOfItsSubscribersWhenRequestingOneByOne": "OneSource",
        "optional_spec111_multicast_mustProduceTheSameElementsInTheSameSequenceToAllOfItsSubscribersWhenRequestingManyUpfront": "EachInAnotherOrder",
        "optional_spec111_maySupportMultiSubscribe": "OnlyOne",
        "required_spec303_mustNotAllowUnboundedRecursion": "DeafWhileSignalling Recursive LosesDemandWhenBusy",
        "required_spec306_afterSubscriptionIsCancelledRequestMustBeNops": "IgnoresCancel",
        "required_spec307_afterSubscriptionIsCancelledAdditionalCancelationsMustBeNops": "CompletesOnCancel SecondCancelRaises",
        "required_spec309_requestZeroMustSignalIllegalArgumentException": "IgnoresZero SignalsAnotherError RequestRaises",
        "required_spec309_requestNegativeNumberMustSignalIllegalArgumentException": "IgnoresNegative",
        "optional_spec309_requestNegativeNumberMaySignalIllegalArgumentExceptionWithSpecificMessage": "SaysLittle",
        "required_spec317_mustSupportAPendingElementCountUpToLongMaxValue": "Has32Bits",
        "required_spec317_mustSupportACumulativePendingElementCountUpToLongMaxValue": "KeepsOnlyTheLastRequest",
        "required_spec317_mustNotSignalOnErrorWhenPendingAboveLongMaxValue": "TooMuchIsAnError",
    },
    "blackbox": {
        "required_spec201_blackbox_mustSignalDemandViaSubscriptionRequest": "NeverAsks AsksForZero",
        "required_spec203_blackbox_mustNotCallMethodsOnSubscriptionOrPublisherInOnComplete": "Callson_complete",
        "required_spec203_blackbox_mustNotCallMethodsOnSubscriptionOrPublisherInOnError": "Callson_error",
        "required_spec205_blackbox_mustCallSubscriptionCancelIfItAlreadyHasAnSubscriptionAndReceivesAnotherOnSubscribeSignal": "TakesTheSecondToo AsksTheSecondFirst",
        "required_spec209_blackbox_mustBePreparedToReceiveAnOnCompleteSignalWithPrecedingRequestCall": "EndsNeedAnElement",
        "required_spec213_blackbox_onSubscribe_mustThrowNullPointerExceptionWhenParametersAreNull": "TakesNone_on_subscribe",
        "required_spec213_blackbox_onNext_mustThrowNullPointerExceptionWhenParametersAreNull": "TakesNone_on_next",
        "required_spec213_blackbox_onError_mustThrowNullPointerExceptionWhenParametersAreNull": "TakesNone_on_error",
    },
    "whitebox": {
        "required_spec203_mustNotCallMethodsOnSubscriptionOrPublisherInOnComplete": "Callson_complete",
        "required_spec203_mustNotCallMethodsOnSubscriptionOrPublisherInOnError": "Callson_error",
        "required_exerciseWhiteboxHappyPath": "StopsSilently HandsOverInPairsTheWrongWay",
        "required_spec208_mustBePreparedToReceiveOnNextSignalsAfterHavingCalledSubscriptionCancel": "UsesWhatCancelCleared",
        "required_spec209_mustBePreparedToReceiveAnOnCompleteSignalWithPrecedingRequestCall": "EndsNeedAnElement",
        "required_spec209_mustBePreparedToReceiveAnOnCompleteSignalWithoutPrecedingRequestCall": "TellsNoEnd",
        "required_spec213_onSubscribe_mustThrowNullPointerExceptionWhenParametersAreNull": "TakesNone_on_subscribe",
        "required_spec213_onNext_mustThrowNullPointerExceptionWhenParametersAreNull": "TakesNone_on_next",
        "required_spec213_onError_mustThrowNullPointerExceptionWhenParametersAreNull": "TakesNone_on_error",
        "required_spec308_requestMustRegisterGivenNumberElementsToBeProduced": "AsksForOneOnly",
        "required_spec201_mustSignalDemandViaSubscriptionRequest": "PuppetDoesNothing NeverRegisters",
    },
    "processor": {
        "mustImmediatelyPassOnOnErrorEventsReceivedFromItsUpstreamToItsDownstream": "SwallowsErrors TakesAnErrorForTheEnd WrapsErrors ErrorsWaitForDemand SwallowsLateErrors",
        "required_spec104_mustCallOnErrorOnAllItsSubscribersIfItEncountersANonRecoverableError": "ErrorsGoToTheFirstOnly",
        "required_mustRequestFromUpstreamForElementsThatHaveBeenRequestedLongAgo": "ForgetsOldDemand",
        "required_exerciseWhiteboxHappyPath": "NeverCancelsUpstream ChangesElements RepeatsTheFirst",
        "required_spec205_mustCallSubscriptionCancelIfItAlreadyHasAnSubscriptionAndReceivesAnotherOnSubscribeSignal": "TakesASecondUpstream",
        "required_createPublisher3MustProduceAStreamOfExactly3Elements": "DropsEverySecond",
        # And TheEndOvertakes, if something happens to be buffered when the end comes.
        "required_spec105_mustSignalOnCompleteWhenFiniteStreamTerminates": "SwallowsTheEnd",
        "required_spec213_onNext_mustThrowNullPointerExceptionWhenParametersAreNull": "PassesNoneOn",
    },
}

#: They hold a lock while they signal, and the official kit, which has no limit, waits for ever.
HANGS: Final = ("HoldsALockWhileSignalling", "SignalsUnderItsLock")


@dataclass(frozen=True)
class Broken:
    """One broken implementation."""

    name: str  #: such as ``publisher.OneTooMany``
    kind: str
    rule: str  #: that it breaks
    verification: type[Verification]
    test: str  #: the official test that rejects it; empty if there is none


def list_broken() -> Iterator[Broken]:
    """Each class of ``tests/broken`` once."""
    found: set[str] = set()
    groups = {
        "publisher": publishers,
        "blackbox": blackbox,
        "whitebox": whitebox,
        "processor": processors,
    }
    for kind, group in groups.items():
        tests = {name: test for test, names in SEEN[kind].items() for name in names.split()}
        for case in group.cases:
            name = case.broken.__name__
            if f"{kind}.{name}" not in found:
                found.add(f"{kind}.{name}")
                broken = _verification(kind, case)
                yield Broken(f"{kind}.{name}", kind, case.rule, broken, tests.get(name, ""))


def list_seen() -> list[Broken]:
    """Those that the official kit rejects."""
    return [broken for broken in list_broken() if broken.test]


def _verification(kind: str, case: Case) -> type[Verification]:
    correct = CORRECT[kind]
    hook = getattr(case.broken, "hook", correct.essential_hook)

    def create(_self: Verification, *arguments: object) -> object:
        if hook == "create_failed_publisher":
            arguments = (0,)
        return case.broken(*arguments)

    return type(case.broken.__name__, (correct,), {hook: create})
