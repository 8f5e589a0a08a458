"""Which of the good variants are shipped: nothing is lost without a shipped one in its place."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from packager.judge.ranking import (
    MEMORY_TOLERANCE,
    SIZE_TOLERANCE,
    beats,
    figures,
    worth,
)
from packager.judge.selection import Choice, select
from tests.unit.packager.judge.test_gates import variant
from wire.package.performance import LATENCY_TOLERANCE
from wire.package.variant import Variant

PLAIN = Choice(
    pinned=frozenset({"v0"}), families={}, foreign=False, drop_beaten=False, budget=100
)  # fmt: skip
BEATEN = "is as good in everything and better in something"


@st.composite
def candidates(draw: st.DrawFn) -> list[Variant]:
    """Draw candidates whose figures often differ by about a tolerance."""
    count = draw(st.integers(1, 12))
    near = st.sampled_from([1.0, 1.01, 1.02, 1.03, 1.04, 1.06, 1.1, 2.0, 9.0])
    return [
        variant(
            f"v{number}",
            value=draw(st.sampled_from([0.89, 0.895, 0.9, 0.91])),
            latency_ms=draw(near),
            memory_mib=round(100 * draw(near)),
            size=round(1000 * draw(near)),
            runtime=draw(st.sampled_from(["onnxruntime", "litert"])),
            precision=draw(st.sampled_from(["fp32", "int8"])),
            measured=draw(st.integers(0, 9)) > 0,
            sqnr_db=draw(st.sampled_from([20.0, 30.0])),
        )
        for number in range(count)
    ]


def is_beaten(winner: Variant, loser: Variant) -> bool:
    """Tell, apart from the code, whether one is as good in everything and better in something."""
    (good, ours), (worse, theirs) = figures(winner), figures(loser)
    if ours is None or theirs is None:
        return False
    axes = (
        (ours.latency_p50_ms, theirs.latency_p50_ms, LATENCY_TOLERANCE),
        (ours.peak_memory_bytes, theirs.peak_memory_bytes, MEMORY_TOLERANCE),
        (winner.info.size_bytes, loser.info.size_bytes, SIZE_TOLERANCE),
    )
    as_good = worth(good) >= worth(worse) and all(m <= y * (1 + t) for m, y, t in axes)
    return as_good and (
        worth(good) > worth(worse) or any(m * (1 + t) < y for m, y, t in axes)
    )  # fmt: skip


@given(candidates(), st.integers(1, 6), st.booleans(), st.booleans(), st.booleans())
def test_what_is_dropped_is_beaten_or_represented_by_what_is_shipped(
    drawn: list[Variant], budget: int, foreign: bool, drop_beaten: bool, related: bool
) -> None:
    families = {v.name: v.info.runtime + v.info.precision for v in drawn} if related else {}
    choice = Choice(frozenset({"v0"}), families, foreign, drop_beaten, budget)
    found = select(drawn, choice)
    by_name = {v.name: v for v in drawn}
    assert found.keys() == by_name.keys()
    assert found["v0"].kept
    for name, verdict in found.items():
        if verdict.kept:
            assert not verdict.instead
            continue
        assert found[verdict.instead].kept, "who is named is shipped"
        if BEATEN in verdict.reason:
            assert not foreign
            assert is_beaten(by_name[verdict.instead], by_name[name])
    assert found == select(list(reversed(drawn)), choice), "their order does not matter"


@given(candidates())
def test_without_a_budget_everything_dropped_is_beaten_and_nothing_else(
    drawn: list[Variant],
) -> None:
    found = select(drawn, PLAIN)
    shipped = [v for v in drawn if found[v.name].kept]
    for candidate in drawn:
        beaten = any(is_beaten(winner, candidate) for winner in shipped)
        assert found[candidate.name].kept or beaten
        assert beaten == any(beats(winner, candidate) for winner in shipped)
        if not beaten:
            assert found[candidate.name].kept


@given(candidates(), st.integers(1, 6), st.booleans())
def test_the_budget_is_kept_but_for_what_always_stays(
    drawn: list[Variant], budget: int, foreign: bool
) -> None:
    choice = PLAIN._replace(budget=budget, foreign=foreign)
    kept = [v for v in drawn if select(drawn, choice)[v.name].kept]
    runtimes = {v.info.runtime for v in drawn}
    assert {v.info.runtime for v in kept} == runtimes, "a device may have each alone"
    assert len(kept) <= max(budget, len(runtimes) + 1)


def test_the_budget_drops_what_another_resembles_most_and_names_it() -> None:
    drawn = [
        variant("v0", latency_ms=4.0, memory_mib=200, size=4000),
        variant("fast", latency_ms=1.0, memory_mib=150, size=2000, value=0.899),
        variant("small", latency_ms=2.0, memory_mib=90, size=500, value=0.897),
        variant("smaller", latency_ms=2.1, memory_mib=89, size=480, value=0.896),
    ]
    assert all(v.kept for v in select(drawn, PLAIN).values())
    found = select(drawn, PLAIN._replace(budget=3))
    assert [name for name, v in found.items() if not v.kept] == ["smaller"]
    assert found["smaller"].reason == (
        "small stands for it, because the profile gets 3 variants: top1 0.8970 against 0.8960, "
        "2.000 against 2.100 ms, 90 against 89 MiB, 500 against 480 B"
    )


def test_a_winner_that_is_dropped_itself_is_not_named_alone() -> None:
    # `close` runs what `far` runs, and is itself beaten by `best`.
    drawn = [
        variant("v0", latency_ms=4.0, size=4000),
        variant("best", latency_ms=1.0),
        variant("close", latency_ms=2.0, sqnr_db=40.0),
        variant("far", latency_ms=2.0, sqnr_db=20.0),
    ]
    families = {"close": "int8", "far": "int8"}
    found = select(drawn, PLAIN._replace(families=families))
    assert found["far"].instead == "best"
    assert found["far"].reason.startswith("it runs the same instructions as close")
    assert found["far"].reason.endswith("; best is shipped instead of that one")


def test_choices_do_not_depend_on_luck_above_the_reference() -> None:
    lucky = variant("lucky", value=0.95, latency_ms=2.0)
    found = select([variant("v0"), lucky], PLAIN)
    assert not found["lucky"].kept
    assert msgspec.structs.asdict(found["lucky"])["instead"] == "v0"
