"""Several models of one device: by example, and one model as its policy alone has it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import pytest
from msgspec.structs import replace

from agent.cli.replay import EXAMPLE, VariantList
from agent.replay.run import replay
from agent.replay.trace_file import load_trace, shipped_names
from agent.select.adaptive import PARKED_S
from agent.select.decisions import Candidate, Decision, PolicyContext, PolicyState
from agent.select.estimates import Estimates, Observed
from agent.select.joint import Asked, choose_jointly
from agent.select.outlook import PARKED
from wire.codec import from_json
from wire.health import HealthSnapshot
from wire.policy import Objective, PolicySpec, Sharing

MIB = 1024 * 1024
BIG = Candidate(
    name="big", latency_p50_ms=80.0, peak_memory_bytes=300 * MIB, accuracy=1.0, load_ms=200.0
)
SMALL = Candidate(
    name="small", latency_p50_ms=16.0, peak_memory_bytes=80 * MIB, accuracy=0.95, load_ms=100.0
)
BOTH = (BIG, SMALL)
RATE = 5.0


def spec(weight: float = 1.0, *, may_park: bool = False, kind: str = "adaptive") -> PolicySpec:
    return PolicySpec(
        kind=kind,  # type: ignore[arg-type]  # one of two
        objective=Objective(deadline_ms=400.0, battery_lasts_s=0.0),
        sharing=Sharing(weight=weight, may_park=may_park),
    )


def seen(c: Candidate) -> Observed:
    """Return what a second of regular requests shows of a variant."""
    use = RATE * (c.latency_p50_ms or 0.0) / 1000.0
    return Observed(
        variant=c.name, alone_ms=c.latency_p50_ms, held_bytes=c.peak_memory_bytes or 0,
        requests=RATE, answered=RATE, in_time=RATE, samples=RATE, compute_s=use,
        latency_ms=c.latency_p50_ms, own_load=use,
    )  # fmt: skip


class Device:
    """Models that are decided together, each second, on a board that warms with their load."""

    def __init__(
        self,
        models: Mapping[str, PolicySpec],
        candidates: tuple[Candidate, ...] = BOTH,
        *,
        free_mib: int = 4000,
        idle: float = 0.0,
        slope: float = 0.0,
        programs: float = 0.05,
    ) -> None:
        self.models, self.candidates = dict(models), candidates
        self.contexts = {name: PolicyContext() for name in models}
        self.free_mib, self.idle, self.slope, self.programs = free_mib, idle, slope, programs
        self.headroom: float | None = None
        self.began: list[tuple[str, str | None, str]] = []
        self.decisions: dict[str, Decision] = {}

    def serving(self, name: str) -> str | None:
        return self.contexts[name].variant

    def held(self, names: Iterable[str] | None = None) -> int:
        by_name = {c.name: c for c in self.candidates}
        there = [by_name.get(self.serving(n) or "") for n in names or self.models]
        return sum((c.peak_memory_bytes or 0) for c in there if c is not None)

    def live(self, seconds: int, *, only: str | None = None) -> None:
        """Let seconds pass; with `only` nobody asks about the other models meanwhile."""
        by_name = {c.name: c for c in self.candidates}
        for _ in range(seconds):
            observed = {
                name: seen(by_name[c.variant]) if c.variant else None
                for name, c in self.contexts.items()
            }
            load = self.programs + math.fsum(o.own_load for o in observed.values() if o)
            steady = self.idle + self.slope * min(load, 1.0)
            before = steady if self.headroom is None else self.headroom
            self.headroom = before + (steady - before) / 60.0
            health = HealthSnapshot(
                at_s=0.0,
                headroom=self.headroom,
                cpu_busy_ratio=min(load, 1.0),
                memory_available_bytes=max(self.free_mib * MIB - self.held(), 0),
            )
            asked = {
                name: Asked(
                    self.candidates,
                    self.models[name],
                    replace(context, observed=observed[name], period_s=1.0),
                )
                for name, context in self.contexts.items()
                if only in {None, name}
            }
            self.decisions = choose_jointly(health, asked)
            for name, decision in self.decisions.items():
                context = self.contexts[name]
                is_new = decision.variant != context.variant
                if is_new:
                    self.began.append((name, decision.variant, decision.reason))
                self.contexts[name] = replace(
                    context,
                    variant=decision.variant,
                    state=decision.state,
                    since_switch_s=0.0 if is_new else context.since_switch_s + 1.0,
                )


@pytest.mark.few(3)
@pytest.mark.parametrize("name", shipped_names())
def test_one_model_is_decided_as_its_policy_alone_decides_it(name: str) -> None:
    variants = from_json(EXAMPLE.read_bytes(), VariantList).variants
    for kind in ("adaptive", "rules"):
        policy = PolicySpec(kind=kind, sharing=Sharing(weight=3.0, may_park=True))

        def jointly(
            health: HealthSnapshot,
            candidates: Iterable[Candidate],
            spec: PolicySpec,
            context: PolicyContext,
        ) -> Decision:
            return choose_jointly(health, {"m": Asked(tuple(candidates), spec, context)})["m"]

        alone = replay(load_trace(name), variants, policy)
        assert replay(load_trace(name), variants, policy, policy=jointly) == alone


def test_with_room_for_all_each_serves_its_best() -> None:
    device = Device({"a": spec(), "b": spec(2.0)})
    device.live(120)
    assert (device.serving("a"), device.serving("b")) == ("big", "big")
    assert len(device.began) == 2


def test_the_load_of_the_others_is_not_that_of_other_programs() -> None:
    device = Device({"a": spec(), "b": spec()}, programs=0.1)
    device.live(30)
    for name in "ab":
        estimates = device.contexts[name].state.estimates
        assert estimates.other_load == pytest.approx(0.1)
        assert estimates.free_bytes == 4000 * MIB
    assert device.decisions["a"].inputs["load"] == pytest.approx(0.1 + 2 * 0.4, abs=0.02)


@pytest.mark.parametrize("lesser", ["a", "b"])
def test_under_heat_the_model_of_less_weight_yields_and_names_the_other(lesser: str) -> None:
    weights = {name: 0.5 if name == lesser else 2.0 for name in "ab"}
    # On a warm day both big are too hot, and one of them is not.
    device = Device({n: spec(w) for n, w in weights.items()}, idle=-0.1, slope=1.05)
    for _ in range(60):
        device.live(10)
        device.idle = min(device.idle + 0.006, 0.2)
        assert device.headroom is not None
        assert device.headroom < 1.0
    other = "b" if lesser == "a" else "a"
    assert (device.serving(lesser), device.serving(other)) == ("small", "big")
    reasons = [r for n, v, r in device.began if n == lesser and v == "small"]
    assert all(r.startswith(f"yields to {other}: headroom may reach") for r in reasons)
    assert all(r.endswith("with both") for r in reasons)
    assert [v for n, v, _ in device.began if n == other] == ["big"]


def test_what_does_not_fit_into_memory_together_never_begins_together() -> None:
    device = Device({"a": spec(0.5), "b": spec(2.0)}, free_mib=460)
    for _ in range(60):
        device.live(1)
        assert device.held() <= 460 * MIB
    assert (device.serving("a"), device.serving("b")) == ("small", "big")


def test_the_reserve_is_kept_once_for_all() -> None:
    # Both and one reserve fit, both and two of them would not.
    device = Device({"a": spec(), "b": spec()}, free_mib=600 + 64 + 10)
    device.live(30)
    assert (device.serving("a"), device.serving("b")) == ("big", "big")


def test_when_memory_gets_short_the_model_of_less_weight_makes_room() -> None:
    device = Device({"a": spec(4.0), "b": spec(1.0)})
    device.live(60)
    device.free_mib = 610
    device.live(60)
    assert (device.serving("a"), device.serving("b")) == ("big", "small")
    assert any(n == "b" and "with both" in r for n, _, r in device.began)


def test_a_model_is_parked_only_if_it_may_be_and_comes_back_into_room_that_lasts() -> None:
    one = (replace(BIG, peak_memory_bytes=200 * MIB),)
    device = Device({"a": spec(4.0), "b": spec(1.0, may_park=True)}, one)
    device.live(60)
    assert (device.serving("a"), device.serving("b")) == ("big", "big")
    device.free_mib = 300
    device.live(5)
    assert (device.serving("a"), device.serving("b")) == ("big", None)
    parked = device.decisions["b"]
    assert parked.parked
    assert PARKED in parked.state.work.lost
    assert parked.reason == "parked: the other models leave no room for it yet"
    assert any(r.startswith("parked, as the last resort") for _, _, r in device.began)
    device.free_mib = 480
    device.live(100)
    assert device.serving("b") is None  # what was short a moment ago may be so again
    device.live(500)
    assert device.serving("b") == "big"
    assert device.began[-1][2] == "the other models leave room for it again"
    assert len(device.began) == 4


def test_a_parked_model_takes_no_room_of_one_that_is_being_installed() -> None:
    one = (replace(BIG, peak_memory_bytes=200 * MIB),)
    device = Device({"a": spec(4.0), "b": spec(1.0, may_park=True)}, one)
    device.live(60)
    device.free_mib = 300
    device.live(60)
    assert device.decisions["b"].parked
    device.live(300, only="b")
    assert device.decisions["b"].parked
    assert device.held() <= 300 * MIB


def test_a_model_stays_parked_for_two_minutes_at_least() -> None:
    parks = {"a": spec(4.0), "b": spec(1.0, may_park=True)}
    device = Device(parks, (BIG,), idle=0.1, slope=0.6)
    device.live(120)
    assert device.serving("b") == "big"
    came: list[int] = []
    for second in range(3600):
        # A board at its limit, which the sun warms and clouds cool, again and again.
        device.idle = 0.62 if second % 100 < 60 else 0.3
        before = device.serving("b")
        device.live(1)
        if before != device.serving("b"):
            came.append(second)
    gone = [later - earlier for earlier, later in zip(came[::2], came[1::2], strict=False)]
    assert gone, "it was parked"
    assert min(gone) >= PARKED_S


def test_a_model_that_the_heat_does_not_show_is_not_parked_for_heat() -> None:
    light = replace(SMALL, name="light", latency_p50_ms=0.5)
    parks = {"a": spec(4.0), "b": spec(1.0, may_park=True)}
    device = Device(parks, (light,), idle=0.97, slope=0.5, programs=0.2)
    device.live(600)
    assert device.headroom is not None
    assert device.headroom >= 1.0, "the board is too hot whatever it does"
    assert [variant for _, variant, _ in device.began] == ["light", "light"]


def test_a_model_that_may_not_be_parked_goes_on() -> None:
    one = (replace(BIG, peak_memory_bytes=200 * MIB),)
    device = Device({"a": spec(4.0), "b": spec(1.0)}, one)
    device.live(60)
    device.free_mib = 300
    device.live(60)
    assert (device.serving("a"), device.serving("b")) == ("big", "big")


def test_nothing_is_parked_that_lighter_variants_relieve() -> None:
    parks = {"a": spec(4.0), "b": spec(1.0, may_park=True), "c": spec(0.5, may_park=True)}
    device = Device(parks, idle=0.3, slope=1.0)
    device.live(900)
    assert not any(v is None for _, v, _ in device.began)
    assert device.headroom is not None
    assert device.headroom < 1.0


def test_rules_and_pins_are_given_and_the_others_decide_beside_them() -> None:
    device = Device({"a": spec(0.01, kind="rules"), "b": spec(4.0)}, free_mib=460)
    device.live(5)
    assert (device.serving("a"), device.serving("b")) == ("big", "small")
    device = Device({"a": spec(0.01), "b": spec(4.0)}, free_mib=460)
    device.contexts["a"] = PolicyContext(pinned="big")
    device.live(5)
    assert (device.serving("a"), device.serving("b")) == ("big", "small")
    assert device.decisions["a"].reason == "pinned to big"


def test_a_model_that_has_nothing_to_serve_stops_no_other() -> None:
    benched = tuple(replace(c, benched="it crashed") for c in BOTH)
    health = HealthSnapshot(at_s=0.0, headroom=0.2, memory_available_bytes=4000 * MIB)
    models = {
        "a": Asked(benched, spec(may_park=True), PolicyContext()),
        "b": Asked(BOTH, spec(), PolicyContext()),
    }
    decisions = choose_jointly(health, models)
    assert (decisions["a"].variant, decisions["a"].reason) == (None, "no variant may serve")
    assert not decisions["a"].parked
    assert decisions["b"].variant == "big"
    assert choose_jointly(health, models) == decisions


def test_a_model_that_comes_later_knows_what_the_others_know_of_the_device() -> None:
    device = Device({"a": spec(), "b": spec()}, idle=0.2, slope=0.3)
    device.live(300)
    device.models["c"] = spec()
    device.contexts["c"] = PolicyContext(state=PolicyState(estimates=Estimates()))
    device.live(1)
    new, old = (device.contexts[name].state.estimates for name in "ca")
    assert (new.heat, new.free_bytes, new.other_load) == (old.heat, old.free_bytes, old.other_load)
