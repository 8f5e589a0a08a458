"""Figures from the field in a manifest: whose they are, and what they leave as it was."""

from __future__ import annotations

import msgspec
import pytest

from agent.select.decisions import candidate
from tests.simulators.packages import PROFILE, variant
from wire.package.manifest import Manifest, manifest_from_bytes, manifest_to_bytes
from wire.package.performance import FieldFigures, Performance
from wire.package.variant import Requirements, Variant

ELSEWHERE = msgspec.structs.replace(PROFILE, name="elsewhere")
PEAK_BYTES = 3 * 2**20 + 1


def measured(latency_ms: float) -> Performance:
    return Performance(
        latency_p50_ms=latency_ms,
        latency_p95_ms=latency_ms,
        load_ms=1.0,
        first_inference_ms=1.0,
        peak_memory_bytes=PEAK_BYTES,
        runs=30,
        threads=1,
        machine="a board",
    )


def with_field(name: str, latency_ms: float, **changes: object) -> Variant:
    found = variant(name)
    figures = FieldFigures(performance=measured(latency_ms), devices=2, at_s=5.0)
    info = msgspec.structs.replace(found.info, field={PROFILE.name: figures}, **changes)
    return msgspec.structs.replace(found, info=info)


def of(*variants: Variant) -> Manifest:
    return Manifest(name="m", version="1", variants=variants)


def test_the_policy_of_a_new_device_begins_with_the_figures_of_its_profile() -> None:
    manifest = of(with_field("a", 70.0))
    (here,), (there,) = manifest.fitting(PROFILE), manifest.fitting(ELSEWHERE)
    assert candidate(here).latency_p50_ms == 70.0
    assert candidate(there) == candidate(variant("a"))


def test_what_the_device_measured_itself_counts_more() -> None:
    (here,) = of(with_field("a", 70.0)).fitting(PROFILE)
    assert candidate(here, latency_ms=50.0).latency_p50_ms == 50.0


def test_a_need_that_no_build_could_measure_is_that_of_the_field() -> None:
    unknown = with_field("a", 70.0, requirements=Requirements(), performance=None)
    (here,) = of(unknown).fitting(PROFILE)
    assert here.info.requirements.memory_bytes == 4 * 2**20
    assert candidate(here).peak_memory_bytes == 4 * 2**20
    small = msgspec.structs.replace(PROFILE, memory_bytes=2**20)
    assert not of(unknown).fitting(small)
    assert "bytes of memory" in of(unknown).misfits(small)["a"]


def test_figures_of_the_field_survive_writing_and_reading() -> None:
    manifest = of(with_field("a", 70.0))
    assert manifest_from_bytes(manifest_to_bytes(manifest)) == manifest


def test_a_manifest_without_them_does_not_name_them() -> None:
    assert b'"field"' not in manifest_to_bytes(of(variant("a")))


@pytest.mark.parametrize("profile", [PROFILE, ELSEWHERE])
def test_the_files_of_a_variant_are_the_same_on_every_device(profile: object) -> None:
    one = with_field("a", 70.0)
    assert one.on(PROFILE.name).directory == one.directory
    assert one.on("nobody") is one
