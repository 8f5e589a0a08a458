"""The fleet's judgement of a device is the device's own: the same packages, asked at both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.domain.preflight import (
    MAX_VARIANTS_NAMED,
    RUNS,
    TAKES,
    UNKNOWN,
    Answer,
    OfferedRelease,
    Verdict,
    beside_others,
    verdict,
)
from tests.simulators.device import SimulatedDevice
from tests.simulators.packages import PROFILE, SignedPackage, package, variant
from wire.desired import MAX_MODELS, NAMED_MODELS
from wire.package.manifest import MANIFEST_FILE, Manifest, manifest_from_bytes
from wire.package.variant import Requirements, Variant
from wire.profile import DeviceProfile, only_runtimes

MODELS = {"best": b"best " * 2000, "small": b"small " * 500}


def made(version: str, *, memory_bytes: int = 4096, **needs: Any) -> SignedPackage:
    """Make a package whose better variant needs more."""
    best = variant("best", accuracy=0.99, memory_bytes=memory_bytes)
    requirements = Requirements(memory_bytes=memory_bytes, **needs)
    info = msgspec.structs.replace(best.info, requirements=requirements)
    small = variant("small", memory_bytes=1024)
    return package(
        version,
        [(msgspec.structs.replace(best, info=info), MODELS["best"]), (small, MODELS["small"])],
    )


def offered(signed: SignedPackage) -> OfferedRelease:
    return OfferedRelease(
        digest=signed.digest,
        index=signed.index,
        manifest=manifest_from_bytes(signed.files[MANIFEST_FILE]),
        envelope_size_bytes=len(signed.envelope),
    )


def bare(*variants: Variant) -> OfferedRelease:
    signed = package("1", [(each, b"model") for each in variants])
    return offered(signed)


OLD, NEW, PICKY = made("1.0.0"), made("2.0.0"), made("3.0.0", isa_features=("avx512_vnni",))
BOTH_BYTES = offered(OLD).size_on(PROFILE) + offered(NEW).size_on(PROFILE)


def profile(**changes: Any) -> DeviceProfile:
    return msgspec.structs.replace(PROFILE, **changes)


@pytest.mark.parametrize(
    ("signed", "kind", "why"),
    [
        (NEW, profile(), ""),
        (NEW, profile(memory_bytes=1024), ""),
        (NEW, profile(memory_bytes=1023), "small needs 1024 bytes of memory, but the device has"),
        (NEW, profile(runtimes=("litert",)), "best needs the runtime null; small needs the"),
        (PICKY, profile(), ""),
        (NEW, profile(storage_bytes=BOTH_BYTES), ""),
        (NEW, profile(storage_bytes=BOTH_BYTES - 1), " of what it runs, but the profile"),
    ],
    ids=["all", "small", "memory", "runtime", "isa", "room", "no-room"],
)
def test_the_fleet_says_what_the_device_would_do(
    tmp_path: Path, signed: SignedPackage, kind: DeviceProfile, why: str
) -> None:
    said = verdict(offered(signed), kind, [offered(OLD)])
    assert said.answer is (Answer.REFUSES if why else Answer.TAKES)
    assert why in said.reason
    device = SimulatedDevice(tmp_path)
    device.boot()
    device.install(1, OLD)
    device.profile = kind
    device.boot()
    device.server.sent.clear()
    device.install(2, signed)
    outcome = device.heard.outcomes[-1]
    assert outcome.outcome == ("failed" if why else "succeeded")
    if why:
        assert outcome.error_code in {"agent.variant", "agent.storage.full"}
        assert outcome.phase == "preflight"


def test_a_device_that_has_not_said_what_it_is_is_unknown() -> None:
    assert verdict(offered(NEW), None, [offered(OLD)]) == UNKNOWN


def test_a_release_that_nobody_knows_takes_no_storage() -> None:
    alone = profile(storage_bytes=offered(NEW).size_on(PROFILE))
    assert verdict(offered(NEW), alone, []) == TAKES
    assert verdict(offered(NEW), alone, [offered(OLD)]).answer is Answer.REFUSES


def test_a_runtime_of_the_profile_that_the_device_lacks() -> None:
    said = verdict(offered(NEW), only_runtimes(PROFILE, []), [])
    assert said.reason == (
        "no variant fits: best needs the runtime null; small needs the runtime null"
    )


def test_a_long_list_of_variants_is_cut() -> None:
    many = bare(*(variant(f"v{number}") for number in range(MAX_VARIANTS_NAMED + 3)))
    reason = verdict(many, profile(runtimes=()), []).reason
    assert reason.endswith("v5 needs the runtime null; and 3 more")


@given(
    memory=st.integers(1, 64),
    needs=st.lists(st.tuples(st.integers(0, 64), st.booleans(), st.booleans()), max_size=4),
)
def test_every_variant_is_kept_or_has_its_reason(
    memory: int, needs: list[tuple[int, bool, bool]]
) -> None:
    variants = []
    for number, (memory_bytes, listed, other) in enumerate(needs):
        plain = variant(f"v{number}", memory_bytes=memory_bytes)
        profiles = ((PROFILE.name,) if listed else ()) + (("other",) if other else ())
        info = msgspec.structs.replace(plain.info, profiles=profiles)
        variants.append(msgspec.structs.replace(plain, info=info))
    manifest = Manifest(name="digits", version="1", variants=tuple(variants))
    kind = profile(memory_bytes=memory)
    kept = [each.name for each in manifest.fitting(kind)]
    assert sorted([*kept, *manifest.misfits(kind)]) == sorted(each.name for each in variants)
    assert all(manifest.misfits(kind).values())


REFUSED = Verdict(answer=Answer.REFUSES, reason="no variant fits")
OTHERS = st.sets(st.sampled_from([f"m{number}" for number in range(40)]), max_size=40)


@given(st.sampled_from([TAKES, RUNS, UNKNOWN, REFUSED]), OTHERS, st.sampled_from([1, 2, 3]))
def test_other_models_change_only_what_would_be_taken(
    said: Verdict, others: set[str], form: int
) -> None:
    found = beside_others(said, "m0", others, form)
    kept = len(others - {"m0"})
    is_full = kept >= (1 if form < NAMED_MODELS else MAX_MODELS)
    if said in {TAKES, RUNS} and is_full:
        assert found.answer is Answer.REFUSES
        assert found.reason
    else:
        assert found == said


def test_an_agent_with_one_model_says_which() -> None:
    said = beside_others(TAKES, "faces", {"digits", ""}, 1)
    assert said.reason == "its agent has one model, digits: update the agent"
    assert beside_others(TAKES, "digits", {"digits"}, 1) == TAKES
    assert beside_others(TAKES, "faces", {""}, 1) == TAKES, "a package that nobody knows gives way"
