"""What a desired state may say, and when it may be a recording of an earlier one."""

from __future__ import annotations

import msgspec
import pytest

from agent.errors import RefusedError
from agent.install.desired import Known, check_revision, read_desired
from tests.simulators.packages import DIRECTOR_KEY, TRUST, desired, package, two_variants, variant
from wire.codec import to_json
from wire.desired import (
    DESIRED_PAYLOAD_TYPE,
    MAX_MODELS,
    MAX_REVISION,
    MAX_REVISION_STEP,
    DesiredModels,
    ModelState,
    desired_from_json,
)
from wire.errors import WireFormatError
from wire.policy import Objective, PolicySpec
from wire.trust.envelope import seal

WANTED = two_variants("1.0.0", best="best", small="small")


def read(policy: PolicySpec) -> PolicySpec:
    said, envelope = desired(1, WANTED, policy=policy)
    (model,) = read_desired(envelope, TRUST, said.device).models
    return model.policy


@pytest.mark.parametrize(
    "objective",
    [
        Objective(),
        Objective(min_retention=1.0, deadline_ms=0.001, deadline_probability=0.5),
        Objective(battery_lasts_s=0.0, deadline_probability=0.999),
        Objective(battery_until="18:00"),
    ],
)
def test_an_objective_that_can_be_is_believed(objective: Objective) -> None:
    policy = PolicySpec(kind="adaptive", objective=objective)
    assert read(policy) == policy


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
        Objective(battery_until="noon"),
    ],
)
def test_an_objective_that_cannot_be_is_refused(objective: Objective) -> None:
    with pytest.raises(RefusedError, match="the policy of model digits is not valid: objective"):
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
    with pytest.raises(RefusedError, match="policy of model digits is not valid"):
        read(policy)


FAR = MAX_REVISION_STEP + 1


def check(revision: int, *, floor: int, lost: bool = False, boot_id: str | None = None) -> None:
    named = msgspec.UNSET if boot_id is None else boot_id
    said, _ = desired(revision, WANTED, boot_id=named)
    check_revision(desired_from_json(to_json(said)), Known(floor=floor, lost=lost, boot_id="now"))


@pytest.mark.parametrize(
    ("revision", "floor"),
    [(1, 0), (MAX_REVISION, 0), (7, 7), (8, 7), (7 + MAX_REVISION_STEP, 7)],
)
@pytest.mark.parametrize("boot_id", [None, "now", "before"])
def test_a_revision_that_follows_is_taken(revision: int, floor: int, boot_id: str | None) -> None:
    check(revision, floor=floor, boot_id=boot_id)


@pytest.mark.parametrize("boot_id", [None, "now", "before"])
@pytest.mark.parametrize("revision", [1, 6])
def test_an_older_revision_is_refused_whatever_start_it_names(
    revision: int, boot_id: str | None
) -> None:
    with pytest.raises(RefusedError, match="older than the accepted 7"):
        check(revision, floor=7, boot_id=boot_id)


@pytest.mark.parametrize(("revision", "floor"), [(7 + FAR, 7), (MAX_REVISION, 1), (1, FAR + 1)])
def test_a_step_without_bounds_is_believed_only_if_it_names_this_start(
    revision: int, floor: int
) -> None:
    check(revision, floor=floor, boot_id="now")
    for boot_id in (None, "before"):
        with pytest.raises(RefusedError):
            check(revision, floor=floor, boot_id=boot_id)


@pytest.mark.parametrize("revision", [1, 7, FAR, MAX_REVISION])
@pytest.mark.parametrize("floor", [0, 3, 7])
def test_without_a_record_nothing_counts_but_what_names_this_start(
    revision: int, floor: int
) -> None:
    check(revision, floor=floor, lost=True, boot_id="now")
    for boot_id in (None, "before", ""):
        with pytest.raises(RefusedError, match="may be a recording") as caught:
            check(revision, floor=floor, lost=True, boot_id=boot_id)
        assert "controller" in caught.value.remedy


@pytest.mark.parametrize("revision", [0, -1, MAX_REVISION + 1, 2**63 - 1])
def test_a_revision_that_cannot_be_is_refused(revision: int) -> None:
    said, envelope = desired(revision, WANTED)
    with pytest.raises(RefusedError, match="not within 1 to"):
        read_desired(envelope, TRUST, said.device)


SPEECH = package("1.0.0", [(variant("best"), b"speech")], name="speech")
DIGITS_STATE = ModelState(name="digits", revision=3, release=WANTED.ref)
SPEECH_STATE = ModelState(name="speech", revision=5, release=SPEECH.ref)


def read_named(*models: ModelState, device: str = "dev-1") -> DesiredModels:
    said = DesiredModels(device=device, revision=5, issued_at_s=1.0, models=models)
    envelope = seal(to_json(said), payload_type=DESIRED_PAYLOAD_TYPE, keys=[DIRECTOR_KEY])
    return read_desired(envelope, TRUST, "dev-1")


def test_several_models_are_read_as_they_were_said() -> None:
    nothing_ordered = ModelState(name="faces", revision=1, release=None)
    models = (DIGITS_STATE, SPEECH_STATE, nothing_ordered)
    assert read_named(*models).models == models
    assert read_named().models == ()


BAD = msgspec.structs.replace(SPEECH.ref, digest="../../etc")
IMPOSSIBLE = {
    "for another device": ((), "dev-2", "dev-1 received a desired state for 'dev-2'"),
    "named twice": ((DIGITS_STATE, DIGITS_STATE), "dev-1", "digits is named twice"),
    "of another model": (
        (msgspec.structs.replace(DIGITS_STATE, name="speech"),),
        "dev-1",
        "package of another model: digits:1.0.0",
    ),
    "a path as a name": (
        (ModelState(name="../digits", revision=1, release=None),),
        "dev-1",
        "is no name of a model",
    ),
    "later than the whole": (
        (msgspec.structs.replace(DIGITS_STATE, revision=6),),
        "dev-1",
        "revision 6 of model digits",
    ),
    "too many": (
        tuple(ModelState(name=f"m{n}", revision=1, release=None) for n in range(MAX_MODELS + 1)),
        "dev-1",
        "has 32 at most",
    ),
    "no digest in the second": (
        (DIGITS_STATE, msgspec.structs.replace(SPEECH_STATE, release=BAD)),
        "dev-1",
        "'speech' '1.0.0' has an invalid name, size or digest",
    ),
    "no policy in the second": (
        (DIGITS_STATE, msgspec.structs.replace(SPEECH_STATE, policy=PolicySpec(dwell_s=-1.0))),
        "dev-1",
        "the policy of model speech is not valid",
    ),
}


@pytest.mark.parametrize(("models", "device", "fact"), IMPOSSIBLE.values(), ids=IMPOSSIBLE.keys())
def test_models_that_cannot_be_are_refused_as_a_whole(
    models: tuple[ModelState, ...], device: str, fact: str
) -> None:
    with pytest.raises(RefusedError) as caught:
        read_named(*models, device=device)
    assert fact in str(caught.value)
