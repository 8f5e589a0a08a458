"""Answers of devices to measurements: what is possible, and the digest of a variant's files."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.simulators.packages import variant
from wire.codec import to_json
from wire.errors import WireFormatError
from wire.measuring import MAX_VARIANTS, Measured, MeasuredVariant, check_measured, files_digest
from wire.messages import MAX_MESSAGE_BYTES
from wire.package.performance import Performance, Relative

GOOD = Performance(
    latency_p50_ms=1.0,
    latency_p95_ms=2.0,
    load_ms=3.0,
    first_inference_ms=4.0,
    peak_memory_bytes=2**20,
    runs=30,
    threads=1,
    machine="m",
    relative=Relative(reference="null", ratio=1.0, low=0.9, high=1.1, pairs=8),
)


def answer(*variants: MeasuredVariant, **changes: Any) -> Measured:
    return Measured(device="d", id="m", state="measured", variants=variants, **changes)


def with_figures(**changes: Any) -> MeasuredVariant:
    return MeasuredVariant(name="a", performance=msgspec.structs.replace(GOOD, **changes))


def test_an_answer_with_figures_and_reasons_is_possible() -> None:
    check_measured(answer(with_figures(), MeasuredVariant(name="b", reason="too large")))


def test_the_greatest_answer_fits_into_a_message() -> None:
    figures = msgspec.structs.replace(GOOD, machine="m" * 500)
    each = [MeasuredVariant(name=f"{n:063}", performance=figures) for n in range(MAX_VARIANTS)]
    check_measured(answer(*each))
    assert len(to_json(answer(*each))) < MAX_MESSAGE_BYTES


@pytest.mark.parametrize(
    "changes",
    [
        {"latency_p50_ms": 0.0},
        {"latency_p50_ms": -1.0},
        {"latency_p95_ms": 1e12},
        {"latency_iqr_ms": math.nan},
        {"load_ms": math.inf},
        {"peak_memory_bytes": 0},
        {"runs": 2**60},
        {"threads": -1},
        {"machine": "m" * 501},
        {"machine": "\x1b[2J"},
        {"energy_j": -1.0},
        {"energy_j": math.inf},
        {"background_cpus": -0.5},
        {"relative": Relative(reference="null", ratio=2.0, low=0.9, high=1.1, pairs=8)},
        {"relative": Relative(reference="null", ratio=0.0, low=0.0, high=1.1, pairs=8)},
        {"relative": Relative(reference="r" * 501, ratio=1.0, low=1.0, high=1.1, pairs=8)},
    ],
)
def test_figures_that_nothing_can_have_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(WireFormatError):
        check_measured(answer(with_figures(**changes)))


@pytest.mark.parametrize(
    "wrong",
    [
        answer(with_figures(), with_figures()),
        answer(MeasuredVariant(name="a")),
        answer(MeasuredVariant(name="../a", performance=GOOD)),
        answer(MeasuredVariant(name="a", performance=GOOD, reason="both")),
        answer(*(MeasuredVariant(name=str(n), reason="r") for n in range(MAX_VARIANTS + 1))),
        answer(temperature_after_c=1e6),
    ],
)
def test_answers_that_contradict_themselves_are_refused(wrong: Measured) -> None:
    with pytest.raises(WireFormatError):
        check_measured(wrong)


@given(st.dictionaries(st.text(min_size=1), st.text(), min_size=1))
def test_the_digest_of_files_knows_no_order(files: dict[str, str]) -> None:
    info = variant("a").info
    backwards = dict(reversed(list(files.items())))
    one, other = (
        files_digest(msgspec.structs.replace(info, files_sha256=each))
        for each in (files, backwards)
    )
    assert one == other


def test_a_package_that_names_no_files_has_no_digest() -> None:
    assert not files_digest(variant("a").info)
