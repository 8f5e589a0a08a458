"""What gates do where devices are away or silent: how large the control group stays, who passes.

- Control group: a rollout of one profile, 10 % held out, five devices at least. At each stage each
  device is away with some chance, anew; all of a stage that are there begin at once. Counted are
  rollouts of which fewer than five devices of the control group can be compared in the last stage:
  its gates hold then. Beside it, the same where nobody takes the place of one that was away.
- Silence: at each look a device tells with some chance, and half of them do as at the look before.
  A release silences some for good, or none. The gate's limit is far off, so silence alone decides.
  Counted are rollouts that pass at the first look or at any of six: of a harmful release that is
  wrong, of a harmless one right. Beside it, the same if the last look alone counted.

The rules are the controller's own functions; a rehearsal asks them in the same way. `--quick` draws
fewer. `GATES_SEED=7 python -m benchmarks.gate_presence` draws what nobody has seen. No time is
measured.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from benchmarks.harness import Row, main
from controller.domain.gates.control import control_group
from controller.domain.gates.language import parse_gate
from controller.domain.gates.look import Compared, Member, judged
from controller.domain.gates.looks import level
from controller.domain.gates.silence import Silence
from controller.domain.gates.states import LEAST_DEVICES, GateState
from controller.domain.rehearsal.turning import Turns
from controller.domain.rollout_view import GateView, Limits, RolloutView, StageSpec
from controller.domain.stage_progress import target_of
from controller.domain.starting_order import PLACES
from controller.domain.states import RolloutState

SEED: Final = 20261128
ROLLOUTS, QUICK_ROLLOUTS = 2000, 100
SILENCES, QUICK_SILENCES = 400, 30
LOOKS: Final = 6
ALIKE: Final = 0.5
"""What part of the devices does at a look as at the one before."""

DAY_S: Final = 86_400.0

FLEETS: Final = (  # devices, stages, share away
    (30, 3, 0.05), (30, 3, 0.1), (60, 3, 0.1), (100, 5, 0.1), (100, 20, 0.05),
)  # fmt: skip
SILENT: Final = (  # with the release, control group, share that tells, share that it silences
    (200, 20, 0.85, 0.2), (80, 9, 0.85, 0.25), (200, 20, 0.85, 0.0), (50, 6, 0.85, 0.0),
    (50, 6, 0.95, 0.0),
)  # fmt: skip

LIMITS: Final = Limits(
    max_in_flight=1000, soak_s=600.0, device_deadline_s=3600.0, offline_limit_s=3600.0,
    max_failures=0, max_failure_percent=None, min_finished=10, approval=False,
)  # fmt: skip
GATE: Final = parse_gate("inference_failures_total/inference_requests_total <= +20pp")


def compared_in_the_last_stage(
    devices: int, stages: int, away: float, chance: np.random.Generator, *, refills: bool
) -> int:
    """Roll out, and return how many devices of the control group the last stage can compare.

    Args:
        devices: How many there are.
        stages: How many; each brings the release to the same number more.
        away: With what chance a device is away at a stage.
        chance: Draws who is.
        refills: Whether others take the places of those that were away.
    """
    places = [int(place) for place in chance.choice(PLACES, devices, replace=False)]
    named = {str(at): place for at, place in enumerate(places)}
    control = sorted(int(name) for name in control_group(named, dict.fromkeys(named, ""), 10.0))
    pending = sorted({*range(devices)} - {*control}, key=places.__getitem__)
    turns, done = Turns(places, [""] * devices), set[int]()
    specs = tuple(StageSpec(percent=100.0 * (at + 1) / stages) for at in range(stages))
    for stage in range(1, stages + 1):
        online = chance.random(devices) >= away
        view = _view(specs, stage, len(done), len(pending), len(control), devices)
        starting = [at for at in pending if online[at]][: target_of(view) - len(done)]
        instead = turns.note(
            view, starting, pending=pending, control=control, succeeded=done, online=online
        )
        if refills:
            held = {*instead.values()}
            control = [*({*control} - instead.keys()), *held]
            pending = sorted({*pending} - held | instead.keys(), key=places.__getitem__)
            starting = [at for at in starting if at not in held]
        done |= {*starting}
        pending = [at for at in pending if at not in done]
    return len({*control} - turns.away)


def _view(
    specs: Sequence[StageSpec], stage: int, done: int, pending: int, control: int, devices: int
) -> RolloutView:
    return RolloutView(
        now_s=0.0, state=RolloutState.RUNNING, limits=LIMITS, stages=tuple(specs), stage=stage,
        stage_complete_at_s=None, approved_stage=stage, initial_devices=devices, succeeded=done,
        failed=0, in_flight=(), pending=pending, control=control, gates=(GateView(text=GATE.text),),
    )  # fmt: skip


def looks(
    treated: int, control: int, tells: float, silenced: float, chance: np.random.Generator
) -> Iterator[frozenset[str]]:
    """Yield who tells at each look."""
    names = np.array([f"cam-{at}" for at in range(treated + control)])
    dead = chance.permutation(treated)[: round(silenced * treated)]
    telling = chance.random(len(names)) < tells
    for _ in range(LOOKS):
        alive = telling.copy()
        alive[dead] = False
        yield frozenset(names[alive].tolist())
        anew = chance.random(len(names)) >= ALIKE
        telling = np.where(anew, chance.random(len(names)) < tells, telling)


def passes_at(
    treated: int,
    control: int,
    told: Sequence[frozenset[str]],
    *,
    remembers: bool,
) -> int | None:
    """Return at which of some looks a gate passes first, from 0; None for none of them."""
    members = [Member(f"cam-{at}", "", at) for at in range(treated + control)]
    of = Compared(
        treated=members[:treated], control=members[treated:],
        span=(0.0, 3600.0), before=(-DAY_S, 0.0),
    )  # fmt: skip
    before = dict.fromkeys((member.device for member in members), 0.0)
    earlier: list[Silence] = []
    for at, names in enumerate(told):
        after = dict.fromkeys(names, 0.0)
        said = judged(GATE, of, after, before, names, level(at + 1, 1), earlier, trials={})
        if said.state is GateState.PASS:
            return at
        if remembers:
            earlier.append(said.silence)
    return None


def measure(quick: bool) -> list[Row]:
    """Draw rollouts."""
    seed = int(os.environ.get("GATES_SEED", SEED))
    return [*_groups(seed, QUICK_ROLLOUTS if quick else ROLLOUTS), *_silences(
        seed, QUICK_SILENCES if quick else SILENCES
    )]  # fmt: skip


def _groups(seed: int, rollouts: int) -> Iterator[Row]:
    for number, (devices, stages, away) in enumerate(FLEETS):
        ours, theirs = (
            [
                compared_in_the_last_stage(
                    devices, stages, away, _chance(seed, 0, number, each), refills=refills
                )
                < LEAST_DEVICES
                for each in range(rollouts)
            ]
            for refills in (True, False)
        )
        what = f"{devices} devices, {stages} stages, {100 * away:g} % away"
        yield _row(f"{what}: fewer than five left to compare", ours, theirs, "nobody takes a place")


def _silences(seed: int, rollouts: int) -> Iterator[Row]:
    for number, (treated, control, tells, silenced) in enumerate(SILENT):
        first: list[list[int | None]] = [[], []]
        for each in range(rollouts):
            chance = _chance(seed, 1, number, each)
            told = list(looks(treated, control, tells, silenced, chance))
            for found, remembers in zip(first, (True, False), strict=True):
                found.append(passes_at(treated, control, told, remembers=remembers))
        what = (
            f"{treated} + {control} devices, {100 * tells:g} % tell, {100 * silenced:g} % silenced"
        )
        peer = "the last look alone"
        for name, most in (("passes at the first look", 0), ("within six", LOOKS)):
            ours, theirs = ([at is not None and at <= most for at in found] for found in first)
            yield _row(f"{what}: {name}", ours, theirs, peer)


def _chance(*seeds: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(list(seeds)))


def _row(name: str, ours: Sequence[bool], theirs: Sequence[bool], peer: str) -> Row:
    value, peer_value = (sum(each) / len(each) for each in (ours, theirs))
    return Row(
        name=name, value=value, unit="1", peer=peer, peer_value=peer_value,
        spread=f"of {len(ours)} rollouts",
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main("Gates: who is away, and who is silent", measure))
