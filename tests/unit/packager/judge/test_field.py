"""Figures of the field: which files they are of, and what they decide for their profile."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from packager.judge.field import as_told, field_notes, judge_each, untold, with_field
from packager.judge.gates import Gates, judge
from packager.judge.verdicts import Verdict
from tests.unit.packager.judge.test_gates import variant
from wire.measuring import ProfileFigures
from wire.package.performance import FieldFigures
from wire.package.variant import Variant
from wire.profile import DeviceProfile

BOX, BOARD = (
    DeviceProfile(
        name=name, architecture="x86_64", memory_bytes=2**30, storage_bytes=2**30,
        runtimes=("onnxruntime",),
    )
    for name in ("box", "board")
)  # fmt: skip
BOTH = ("box", "board")


def told(
    name: str,
    latency_ms: float,
    *,
    profile: str = "board",
    at_s: float = 1.0,
    devices: int = 2,
) -> ProfileFigures:
    performance = variant(name, latency_ms=latency_ms).info.performance
    assert performance is not None
    performance = msgspec.structs.replace(performance, machine="aarch64 a board")
    figures = FieldFigures(performance=performance, devices=devices, at_s=at_s)
    return ProfileFigures(
        profile=profile, release="m:1", variant=name, files_sha256=f"of {name}", figures=figures
    )


def given_field(variants: list[Variant], *known: ProfileFigures) -> tuple[Variant, ...]:
    return with_field(variants, {v.name: f"of {v.name}" for v in variants}, known)


def judged(
    variants: tuple[Variant, ...], gates: Gates | None = None, here: frozenset[str] = frozenset()
) -> Mapping[str, Mapping[str, Verdict]]:
    return judge_each(
        judge,
        variants,
        (BOX, BOARD),
        here=here,
        gates=gates or Gates(),
        references=frozenset({"float"}),
        drop_beaten=True,
    )


def pair() -> list[Variant]:
    """On the building machine, `quick` is fast; both are of the same quality and size."""
    return [
        variant("float", latency_ms=9.0, profiles=BOTH),
        variant("quick", latency_ms=1.0, profiles=BOTH),
        variant("slow", latency_ms=5.0, profiles=BOTH),
    ]


def test_figures_of_other_files_are_not_used() -> None:
    other = msgspec.structs.replace(told("quick", 3.0), files_sha256="of another build")
    assert given_field(pair(), other) == tuple(pair())


def test_of_two_figures_the_newer_counts() -> None:
    found = given_field(pair(), told("quick", 3.0, at_s=2.0), told("quick", 7.0, at_s=1.0))
    field = found[1].info.field or {}
    assert field["board"].performance.latency_p50_ms == 3.0


def test_figures_of_three_devices_count_before_newer_ones_of_fewer() -> None:
    three = told("quick", 3.0, at_s=1.0, devices=3)
    for other in (told("quick", 7.0, at_s=2.0, devices=1), told("quick", 7.0, at_s=0.5, devices=9)):
        for known in ((three, other), (other, three)):
            field = given_field(pair(), *known)[1].info.field or {}
            assert field["board"].performance.latency_p50_ms == 3.0


def test_a_profile_of_another_machine_drops_what_its_devices_say_is_beaten() -> None:
    without = judged(tuple(pair()))
    assert without["board"]["slow"].kept, "nothing is known of its latency there"
    variants = given_field(pair(), told("float", 9.0), told("quick", 8.0), told("slow", 2.0))
    found = judged(variants)
    assert found["board"]["slow"].kept
    assert not found["board"]["quick"].kept
    assert "slow is as good in everything" in found["board"]["quick"].reason
    assert found["box"] == without["box"], "figures hold for their profile alone"


def test_a_gate_of_latency_holds_where_devices_have_measured() -> None:
    variants = given_field(pair(), told("float", 9.0), told("quick", 8.0), told("slow", 2.0))
    gates = Gates(max_latency_ms=4.0)
    found = judged(variants, gates)
    assert found["board"]["quick"].reason == "latency 8.000 ms > 4.000 ms"
    assert found["box"]["quick"].kept
    assert [p.name for p in untold(variants, (BOX, BOARD))] == ["box"]


def test_only_the_field_counts_for_its_profile_even_on_such_a_machine() -> None:
    variants = given_field(pair(), told("float", 9.0), told("slow", 2.0))
    by_name = {v.name: v.info.performance for v in as_told(variants, "board")}
    assert by_name["quick"] is None, "its figure is of another machine"
    found = judged(variants, here=frozenset(BOTH))
    assert found["board"]["quick"].kept
    assert found["board"]["slow"].kept
    assert not found["box"]["slow"].kept


@given(st.lists(st.floats(0.1, 100), min_size=3, max_size=3))
def test_without_figures_of_the_field_nothing_changes(latencies_ms: list[float]) -> None:
    variants = tuple(
        variant(name, latency_ms=latency_ms, profiles=BOTH)
        for name, latency_ms in zip(("float", "quick", "slow"), latencies_ms, strict=True)
    )
    plain = partial(judge, references=frozenset({"float"}), drop_beaten=True)
    here = frozenset({"box"})
    assert judged(variants, here=here) == plain(variants, (BOX, BOARD), Gates(), here=here)


def test_the_notes_say_where_figures_came_from() -> None:
    known = [told("float", 9.0), told("slow", 2.0)]
    variants = given_field(pair(), *known)
    (note,) = field_notes(variants, (BOX, BOARD), known)
    assert note == (
        "profile board: the figures of 2 of 3 variants were measured in the field, on 2 devices "
        "(aarch64 a board)"
    )
    assert not field_notes(tuple(pair()), (BOX, BOARD), ())
    (warning,) = field_notes(tuple(pair()), (BOX, BOARD), known)
    assert "no figures of the field" in warning
