"""What a desired state may say: values that cannot be are refused, whoever signed them."""

from __future__ import annotations

import pytest

from agent.errors import RefusedError
from agent.install.desired import read_desired
from tests.simulators.packages import DIRECTOR_KEY, TRUST, desired, two_variants
from wire.codec import to_json
from wire.errors import WireFormatError
from wire.messages import DESIRED_PAYLOAD_TYPE, DesiredState, Objective, PolicySpec
from wire.trust.envelope import seal

WANTED = two_variants("1.0.0", best="best", small="small")


def read(policy: PolicySpec) -> DesiredState:
    said, envelope = desired(1, WANTED, policy=policy)
    return read_desired(envelope, TRUST, said.device)


@pytest.mark.parametrize(
    "objective",
    [
        Objective(),
        Objective(min_retention=1.0, deadline_ms=0.001, deadline_probability=0.5),
        Objective(battery_lasts_s=0.0, deadline_probability=0.999),
    ],
)
def test_an_objective_that_can_be_is_believed(objective: Objective) -> None:
    policy = PolicySpec(kind="adaptive", objective=objective)
    assert read(policy).policy == policy


@pytest.mark.parametrize(
    "objective",
    [
        Objective(min_retention=-0.1),
        Objective(min_retention=1.1),
        Objective(deadline_ms=0.0),
        Objective(deadline_ms=-5.0),
        Objective(deadline_probability=0.49),
        Objective(deadline_probability=1.0),
        Objective(deadline_probability=-1.0),
        Objective(battery_lasts_s=-1.0),
    ],
)
def test_an_objective_that_cannot_be_is_refused(objective: Objective) -> None:
    with pytest.raises(RefusedError, match="the policy is not valid: objective"):
        read(PolicySpec(kind="adaptive", objective=objective))


@pytest.mark.parametrize("text", [b"1e999", b"NaN", b"Infinity", b'"soon"'])
def test_a_deadline_that_is_no_number_does_not_get_through(text: bytes) -> None:
    policy = PolicySpec(kind="adaptive", objective=Objective(deadline_ms=123.5))
    said, _ = desired(1, WANTED, policy=policy)
    payload = to_json(said)
    assert payload.count(b"123.5") == 1
    forged = payload.replace(b"123.5", text)
    envelope = seal(forged, payload_type=DESIRED_PAYLOAD_TYPE, keys=[DIRECTOR_KEY])
    with pytest.raises(WireFormatError):
        read_desired(envelope, TRUST, said.device)


@pytest.mark.parametrize(
    "policy",
    [
        PolicySpec(cool_headroom=0.9, hot_headroom=0.8),
        PolicySpec(low_battery_ratio=0.5, ok_battery_ratio=0.4),
        PolicySpec(low_memory_bytes=-1),
        PolicySpec(dwell_s=-1.0),
    ],
)
def test_thresholds_in_the_wrong_order_are_refused(policy: PolicySpec) -> None:
    with pytest.raises(RefusedError, match="policy is not valid"):
        read(policy)
