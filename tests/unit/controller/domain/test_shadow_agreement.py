"""Whether a shadow agrees: devices count once, and few of them tell nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.domain.gates.states import GateState
from controller.domain.shadow_agreement import Heard, judged, why_not
from controller.domain.stage_shadow import LEAST_REQUESTS, ShadowNeed

DEVICES = [f"d-{number}" for number in range(5)]
EACH = dict.fromkeys(DEVICES, float(LEAST_REQUESTS))
NEED = ShadowNeed(agreement_percent=99.0, requests=1000, for_s=3600.0)


def test_all_alike_agree() -> None:
    assert why_not(EACH, EACH, 100.0) == ""


def test_a_device_counts_once_however_many_requests_it_compared() -> None:
    requests = EACH | {"d-0": 1_000_000.0}
    agreements = EACH | {"d-0": 0.0}
    assert why_not(requests, agreements, 80.0) == ""
    assert why_not(requests, agreements, 80.1) == (
        "it agrees in 80 % of the requests, at the mean over 5 devices"
    )


def test_a_device_of_which_no_request_agreed_counts_as_none() -> None:
    assert "it agrees in 0 %" in why_not(EACH, {}, 1.0)


def test_few_requests_and_few_devices_tell_nothing() -> None:
    requests = EACH | {"d-0": LEAST_REQUESTS - 1.0}
    assert why_not(requests, requests, 1.0).startswith("4 devices have compared 20 requests")


def heard(agreeing: list[int], *, each: int = 100, ran_s: float = 3600.0, of: int = 40) -> Heard:
    """Return what devices tell, of which each answered so many of its requests alike."""
    names = [f"d-{number}" for number in range(len(agreeing))]
    return Heard(
        requests=dict.fromkeys(names, float(each)),
        agreements=dict(zip(names, map(float, agreeing), strict=True)),
        devices=of,
        ran_s=ran_s,
    )


ALL = [100] * 20
HALF = [99, 98] * 10
SO_FAR = "98.5 % agree, at least 99 % must; the mean over devices is "
CASES = [
    (heard(ALL), "pass", "2,000 requests on 20 of 40 devices, 100 % agree, at least 99 % must; "),
    (heard(ALL), "pass", "99.86 to 100 %; up to 21 % of devices may disagree wholly, unseen"),
    (heard(HALF), "fail", f"{SO_FAR}98.13 to 98.87 %"),
    (heard([100] * 10 + [97] * 10), "hold", f"{SO_FAR}97.48 to 99.52 %: cannot tell yet"),
    (heard(ALL, ran_s=1500.0), "hold", "at least 99 % must; for 25m of 1h"),
    (heard([98, 99, 100, 98], each=103), "hold", "412 of 1,000 requests on 4 of 40 devices, 95.87"),
    (heard([98, 99, 100, 98]), "hold", "99 % must; 4 devices compared 20 or more; 5 must"),
    (heard([5] * 9, each=5), "hold", "45 of 1,000 requests on 9 of 40 devices, at least 99 % must"),
    (heard([]), "hold", "0 of 1,000 requests on 0 of 40 devices, at least 99 % must; 0 devices"),
]


@pytest.mark.parametrize(("told", "state", "reason"), CASES)
def test_what_a_look_shows(told: Heard, state: str, reason: str) -> None:
    found = judged(NEED, told, 1)
    assert reason in found.reason, found
    assert found.state == state, found
    assert found.is_judged == ("the mean over" in found.reason)


def test_one_device_that_tells_of_too_many_agreements_does_not_decide() -> None:
    told = heard([95] * 10 + [100_000])
    assert judged(NEED, told, 1).state is GateState.FAIL


def test_what_waits_says_why_devices_compare_nothing() -> None:
    told = heard([])._replace(skipped={"heat": 3.0, "contention": 1604.0, "late": 0.0})
    assert judged(NEED, told, 1).reason.endswith("; skipped: contention 1,604, heat 3")


FEW = st.lists(st.integers(0, 100), max_size=30)


@given(FEW, st.floats(1.0, 99.9), st.integers(1, 50))
def test_more_agreement_is_never_worse(agreeing: list[int], percent: float, look: int) -> None:
    """A stage that a device lets begin is not held by another that always agrees the same."""
    order = [GateState.FAIL, GateState.HOLD, GateState.PASS]
    need = ShadowNeed(agreement_percent=percent)
    strict = ShadowNeed(agreement_percent=min(percent + 0.05, 99.95))
    assert order.index(judged(strict, heard(agreeing), look).state) <= order.index(
        judged(need, heard(agreeing), look).state
    )


@given(FEW, st.integers(1, 50))
def test_what_is_not_enough_decides_nothing(agreeing: list[int], look: int) -> None:
    early = heard(agreeing, ran_s=NEED.for_s - 1.0)
    assert judged(NEED, early, look)[::2] == (GateState.HOLD, False)


@given(st.integers(5, 60), st.integers(0, 100), st.integers(1, 50))
def test_a_mean_below_the_limit_never_passes_and_one_above_never_fails(
    devices: int, agreeing: int, look: int
) -> None:
    need = ShadowNeed(agreement_percent=60.0)
    state = judged(need, heard([agreeing] * devices), look).state
    assert state is not (GateState.PASS if agreeing <= 60 else GateState.FAIL)
