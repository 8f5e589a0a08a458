"""A rehearsal plays the real policy: good releases reach all, and limits hold in virtual time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.domain.gates.language import parse_gate
from controller.domain.rehearsal.harm import parse_harm
from controller.domain.rehearsal.history import Figures, History, Installs, Played
from controller.domain.rehearsal.setting import Outcome, Planted, RehearsedGate, Setting
from controller.domain.rehearsal.simulation import HORIZON_S, rehearse
from controller.domain.rollout_view import Limits, StageSpec
from controller.domain.stage_progress import targets_of
from controller.domain.start_rate import StartRate
from controller.errors import InvalidRequestError

LIMITS = Limits(
    max_in_flight=10, soak_s=600.0, device_deadline_s=3600.0, offline_limit_s=86_400.0,
    max_failures=0, max_failure_percent=None, min_finished=10, approval=False,
)  # fmt: skip
STAGES = (StageSpec(count=1), StageSpec(percent=30), StageSpec(percent=100))
LATENCY = RehearsedGate(gate=parse_gate("p95(inference_latency_ms) <= +30%"), least=100)
NO_HARM = Planted()


def setting(devices: int, **changes: object) -> Setting:
    usual = Setting(
        devices=tuple(f"cam-{at:03}" for at in range(devices)),
        profiles=("bench",) * devices,
        stages=STAGES,
        limits=LIMITS,
    )
    return replace(usual, **changes)  # type: ignore[arg-type]  # any field


def history(devices: int, *, days: int = 3, away: float = 0.0, **shares: float) -> History:
    chance = np.random.Generator(np.random.PCG64(1))
    shape = devices, 24 * days
    level = 20.0 * chance.lognormal(0.0, 0.3, (devices, 1))
    return History(
        heard=chance.random(shape) >= away,
        figures=(
            Figures(
                values=level * chance.lognormal(0.0, 0.05, shape), counts=np.full(shape, 7200.0)
            ),
        ),
        installs=Installs(took_s=(5.0, 20.0, 60.0), **shares),
    )


def gated(devices: int) -> Setting:
    stages = (StageSpec(percent=20), StageSpec(percent=100))
    return setting(
        devices,
        stages=stages,
        gates=(LATENCY,),
        control_percent=25.0,
        limits=replace(LIMITS, soak_s=7200.0),
    )


def run(of: Setting, known: History, planted: Planted = NO_HARM, *, seed: int = 1) -> Outcome:
    return rehearse(of, known, planted, seed=seed, run=0)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 60), st.floats(0.0, 0.4), st.integers(0, 9), st.integers(1, 20))
def test_without_harm_and_failures_it_reaches_all(
    devices: int, away: float, seed: int, in_flight: int
) -> None:
    of = setting(devices, limits=replace(LIMITS, max_in_flight=in_flight))
    known = history(devices, away=away)
    found = run(of, known, seed=seed)
    assert found == run(of, known, seed=seed)
    assert (found.end, found.started, found.left) == ("succeeded", devices, 0)
    assert len(found.stages_s) == 3
    assert sum(found.stages_s) == found.at_s
    assert all(took_s >= LIMITS.soak_s for took_s in found.stages_s)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 60), st.floats(0.05, 0.9), st.integers(0, 9), st.integers(0, 5))
def test_a_bad_release_reaches_no_more_than_its_stage(
    devices: int, failing: float, seed: int, allowed: int
) -> None:
    of = setting(devices, limits=replace(LIMITS, max_failures=allowed))
    found = run(of, history(devices), Planted(failing=failing), seed=seed)
    assert found.started <= targets_of(STAGES, devices, devices)[found.stage - 1]
    failed = found.started - found.with_release
    if found.end == "halted":
        assert found.rule == "max_failures"
        assert allowed < failed <= allowed + LIMITS.max_in_flight
    else:
        assert failed <= allowed


def test_silent_devices_halt_it_after_their_deadline_and_the_right_limit_is_named() -> None:
    of = setting(5, limits=replace(LIMITS, max_timed_out=0))
    found = run(of, history(5, timed_out=1.0))
    assert (found.end, found.rule, found.started) == ("halted", "max_timed_out", 1)
    assert LIMITS.device_deadline_s < found.at_s < LIMITS.device_deadline_s + 10


def test_gates_pass_a_good_release_and_stop_a_harmful_one_in_the_first_stage() -> None:
    of, known = gated(60), history(60)
    good = run(of, known)
    assert (good.end, good.with_release) == ("succeeded", 60)
    assert good.told[0] is not None
    harm = parse_harm("p95(inference_latency_ms) +100%", [LATENCY.gate])
    bad = run(of, known, Planted(harms=(harm,)))
    assert (bad.end, bad.rule, bad.stage) == ("halted", LATENCY.gate.text, 1)
    assert bad.started == 12
    assert bad.left == 48


@pytest.mark.parametrize("hours", [1, 3])
def test_hours_that_are_looked_at_do_not_tell_what_was_before(hours: int) -> None:
    whole = history(6, days=1)
    figures = whole.figures[0]
    known = replace(
        whole,
        heard=whole.heard[:, -hours:],
        figures=(Figures(values=figures.values[:, -hours:], counts=figures.counts[:, -hours:]),),
    )
    played = Played(known, ("bench",) * 6, 0)
    before, _ = played.figures(0, -86_400.0, 0.0, least=1.0, but=(0.0, 600.0))
    if hours == 1:
        assert np.isnan(before).all(), "a gate would find each device as it was, to the last digit"
    else:
        assert before == pytest.approx(figures.values[:, -2:].mean(axis=1))


def test_a_worst_case_and_what_measures_0_are_asked_as_in_a_rollout() -> None:
    known = history(60)
    none = replace(known, figures=(replace(known.figures[0], values=np.zeros((60, 72))),))
    share = "inference_failures_total/inference_requests_total <= +60pp in the worst case"
    worst = RehearsedGate(gate=parse_gate(share), least=20)
    of = replace(gated(60), gates=(worst,))
    assert run(of, none).end == "succeeded"
    harm = parse_harm("inference_failures_total/inference_requests_total +90pp", [worst.gate])
    assert run(of, none, Planted(harms=(harm,))).rule == worst.gate.text
    found = run(gated(60), none)
    assert (found.end, found.told) == ("unfinished", (None,))
    assert "measure 0" in found.waits


def test_a_gate_that_nobody_tells_anything_for_holds_to_the_end_of_the_virtual_time() -> None:
    known = history(20)
    silent = replace(known, figures=(replace(known.figures[0], counts=np.zeros((20, 72))),))
    found = run(gated(20), silent)
    assert (found.end, found.stage, found.told) == ("unfinished", 2, (None,))
    assert found.at_s <= HORIZON_S
    assert "waits for gates" in found.waits


def test_a_rate_spreads_the_starts() -> None:
    of = setting(
        30, stages=(StageSpec(percent=100),), rate=StartRate(per_minute=1.0),
        limits=replace(LIMITS, soak_s=0.0),
    )  # fmt: skip
    assert 29 * 60 <= run(of, history(30)).at_s <= 31 * 60 + 10


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("p95(inference_latency_ms)", "cannot read the harm"),
        ("p99(inference_latency_ms) +10%", "no gate of the rollout asks"),
    ],
)
def test_harm_that_no_gate_would_see_is_refused(text: str, said: str) -> None:
    with pytest.raises(InvalidRequestError, match=said):
        parse_harm(text, [LATENCY.gate])
