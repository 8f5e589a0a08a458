"""How often gates halt a rollout that is harmless, and how soon they find one that is not.

Fleets are drawn whose devices differ as real ones do: four profiles, each device with a level of
its own, sites whose load goes up and down with the day and with chance, devices that drift and that
get hot for hours. A rollout of three stages goes over them. A tenth of each profile is its control
group, to which those belong that have not begun. Its gates are looked at as the controller looks at
them, by the same functions.

- A/A: the new release is the old one. Counted are rollouts that a gate halts, and those in which
  the interval of any gate ever leaves out the truth: at most the promised 5 %. Once more with a
  small profile that differs ten times as much as the others.
- At the limit: the release does exactly what a gate allows. A gate that fails or passes is wrong;
  each at most 5 %.
- Harm: p95 10 % longer, accuracy 2 points less, 1 % of requests failing, 1 % of them crashing a
  worker. Counted are the rollouts that are halted, and after how many devices.
- Harm to few: one device in twenty fails wholly. Counted are rollouts in which any stage passes the
  usual gate, and a gate in the worst case, which promises that at most 5 % do.

Beside it stands a fixed threshold as alarms of a rollout have it (AWS IoT Jobs and CloudWatch, for
one): halt when the devices of the release are, on the average, further from what they were before
than the same limit. hawkBit and Mender look at failed installs alone: they see none of this.

What is tuned never judges: `--quick` draws from the seed of development, all else from that of
validation. `GATES_SEED=7 python -m benchmarks.gates` draws fleets that nobody has seen, and
`GATES_ROLLOUTS=100` fewer or more of them. No time is measured, so all cores draw at once; each
rollout has a seed of its own.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks.harness import Row, alone, main
from controller.domain.gates.bounded import most_harm
from controller.domain.gates.contrast import Observed, contrast
from controller.domain.gates.language import parse_gate
from controller.domain.gates.looks import ERROR, is_end, level, next_look_s
from controller.domain.gates.silence import Coverage, Telling
from controller.domain.gates.states import LEAST_OF_STRATUM, GateState
from controller.domain.gates.verdicts import verdict

Floats = npt.NDArray[np.float64]

DEVELOPMENT, VALIDATION = 20261126, 20261127
"""Seeds: settings were chosen by the first; the second judges."""

ROLLOUTS, QUICK_ROLLOUTS = 1000, 30
STEP_S: Final = 600.0
BEFORE: Final = 144
"""A day of steps."""

SOAK: Final = 12
"""Two hours."""

STAGES: Final = (0.1, 0.4, 0.9)
"""Parts of the fleet, all of it but the control group at the end."""

CONTROL: Final = 0.1
PROFILES: Final = ((0.5, 0.0), (0.25, 0.7), (0.15, -0.6), (0.1, 1.4))
"""The share of each, and how much slower it is, as a logarithm."""

GATES: Final = tuple(
    parse_gate(text)
    for text in (
        "p95(inference_latency_ms) <= +3%",
        "mean(feedback_accuracy_ratio) >= -0.5pp",
        "inference_failures_total/inference_requests_total <= +0.3pp",
        "worker_crashes_total/inference_requests_total <= +0.1pp",
    )
)
FAILURES: Final = 2
"""The gate on failures."""

WORST: Final = parse_gate(
    "inference_failures_total/inference_requests_total <= +4pp in the worst case"
)
"""A gate of a rollout of its own over the same devices."""


class Harm(NamedTuple):
    """What the new release does."""

    name: str
    p95: float = 0.0
    """By what part it grows."""

    accuracy: float = 0.0
    failures: float = 0.0
    crashes: float = 0.0
    few: float = 0.0
    """What share of the devices fails wholly."""

    @property
    def truth(self) -> tuple[float, ...]:
        """The difference that each gate should find, but for what `few` does."""
        return (math.log1p(self.p95), self.accuracy, self.failures, self.crashes)


NONE: Final = Harm("A/A")
UNEVEN: Final = Harm("A/A, an uneven profile")
FEW: Final = Harm("5 % of devices fail wholly", few=0.05)
_ONE = Telling(devices=1, told=1)
ALL_TELL: Final = Coverage({"": _ONE}, {"": _ONE})
LIMITS: Final = (
    Harm("p95 at its limit", p95=0.03),
    Harm("accuracy at its limit", accuracy=-0.005),
    Harm("failures at their limit", failures=0.003),
)
HARMS: Final = (
    Harm("p95 10 % longer", p95=0.1),
    Harm("accuracy 2 points less", accuracy=-0.02),
    Harm("1 % of requests fail", failures=0.01),
    Harm("1 % of requests crash", crashes=0.01),
)


ALL: Final = (NONE, UNEVEN, FEW, *LIMITS, *HARMS)


@dataclass(frozen=True, slots=True)
class Fleet:
    """What the devices of a fleet would measure with the old release."""

    profile: npt.NDArray[np.int64]
    order: npt.NDArray[np.int64]
    """The order in which devices start; those of the control group come last."""

    control: int
    luck: Floats
    """From 0 to 1, for each device: those below `Harm.few` are hit."""

    steps: tuple[Floats, ...]
    """Shape (steps, devices): of each gate, what a device measures in each step."""

    trials: tuple[Floats, ...]
    """The same: of how many trials each share is; infinite of what is none."""


def drawn(devices: int, chance: np.random.Generator, *, is_uneven: bool = False) -> Fleet:
    """Draw a fleet, and all that happens to it."""
    steps = BEFORE + SOAK * len(STAGES) + 1
    shares = np.array([share for share, _ in PROFILES])
    profile = chance.choice(len(PROFILES), devices, p=shares / shares.sum())
    site = chance.integers(0, max(devices // 15, 2), devices)
    load = _wandering(steps, int(site.max()) + 1, 0.97, 0.12, chance)
    hour = np.arange(steps)[:, None] * STEP_S / 3600.0
    load += 0.15 * np.sin(2 * math.pi * (hour + chance.uniform(0, 24)) / 24.0)
    drift = _wandering(steps, devices, 0.92, 0.08, chance)
    hot = (chance.random((steps, devices)) < 0.002).astype(float)  # noqa: PLR2004
    for at in range(1, steps):
        hot[at] = np.maximum(hot[at], 0.9 * hot[at - 1])
    base = np.array([slower for _, slower in PROFILES])[profile] + chance.normal(0, 0.3, devices)
    strain = load[:, site] + drift + 0.4 * hot
    own = np.where((profile == len(PROFILES) - 1) & is_uneven, 10.0, 1.0)
    p95 = math.log(30.0) + base + load[:, site] + 0.4 * hot
    p95 += own * (drift + chance.normal(0, 0.06, strain.shape))
    hard = chance.normal(0.9, 0.03, devices).clip(0.5, 0.99)
    answers = chance.poisson(25, strain.shape) + 1
    accuracy = chance.binomial(answers, (hard - 0.02 * strain).clip(0.3, 1.0)) / answers
    often = chance.lognormal(math.log(0.001), 1.0, devices)
    requests = chance.poisson(300 * np.exp(0.5 * load[:, site])) + 1
    failures = chance.binomial(requests, (often * np.exp(strain)).clip(0, 0.5)) / requests
    crashes = chance.binomial(requests, 1e-5) / requests
    order, control = _ordered(profile, chance)
    steps_of = (p95, accuracy, failures, crashes)
    endless = np.full(strain.shape, math.inf)
    trials = (endless, *(each.astype(float) for each in (answers, requests, requests)))
    return Fleet(profile, order, control, chance.random(devices), steps_of, trials)


def _wandering(
    steps: int, members: int, kept: float, spread: float, chance: np.random.Generator
) -> Floats:
    """Return values that go up and down: shape (steps, members)."""
    pushes = chance.normal(0.0, spread * math.sqrt(1 - kept**2), (steps, members))
    pushes[0] = chance.normal(0.0, spread, members)
    for at in range(1, steps):
        pushes[at] += kept * pushes[at - 1]
    return pushes


def _ordered(
    profile: npt.NDArray[np.int64], chance: np.random.Generator
) -> tuple[npt.NDArray[np.int64], int]:
    """Return the order of starting and the size of the control group, a part of each profile."""
    shuffled = chance.permutation(len(profile))
    held: list[int] = []
    for number in np.unique(profile):
        members = shuffled[profile[shuffled] == number].tolist()
        part = max(math.ceil(CONTROL * len(members)), LEAST_OF_STRATUM)
        if len(members) >= 2 * LEAST_OF_STRATUM:
            held += members[len(members) - part :]
    rest = shuffled[~np.isin(shuffled, held)]
    return np.concatenate([rest, np.array(held, np.int64)]), len(held)


class Look(NamedTuple):
    """A look at all gates."""

    treated: int
    states: tuple[GateState, ...]
    worst: GateState
    """What the gate in the worst case says at the end of a stage."""

    includes_truth: bool
    alarm: bool
    """Whether the fixed threshold would halt."""

    is_last: bool
    """Whether it is the last of its stage."""


def looks(fleet: Fleet, harm: Harm) -> Iterator[Look]:
    """Roll a release out, and look at its gates."""
    devices = len(fleet.order)
    soak_s = SOAK * STEP_S
    number, begin = 0, BEFORE
    for part in STAGES:
        treated = fleet.order[: min(math.ceil(part * devices), devices - fleet.control)]
        control = fleet.order[len(treated) :]
        last_s: float | None = None
        while (last_s or 0.0) < soak_s:
            at_s = next_look_s(0.0, last_s, soak_s)
            ends = len(STAGES) if is_end(at_s, 0.0, last_s, soak_s) else 0
            last_s, number = at_s, number + 1
            end = begin + max(round(at_s / STEP_S), 1)
            yield _look(fleet, harm, treated, control, slice(begin, end), number, ends)
        begin += SOAK


def _look(
    fleet: Fleet,
    harm: Harm,
    treated: npt.NDArray[np.int64],
    control: npt.NDArray[np.int64],
    span: slice,
    number: int,
    ends: int,
) -> Look:
    states, includes, alarm = [], True, False
    sides: list[list[Observed]] = []
    worst = GateState.HOLD
    for number_of, (gate, steps, counts, truth) in enumerate(
        zip(GATES, fleet.steps, fleet.trials, harm.truth, strict=True)
    ):
        trials = counts[span].sum(axis=0)
        before, after = steps[:BEFORE].mean(axis=0), steps[span].mean(axis=0)
        if number_of == FAILURES and harm.few:
            hit = treated[fleet.luck[treated] < harm.few]
            after[hit] = 1.0
        sides = [
            [
                Observed(
                    float(after[at]) + by,
                    float(before[at]),
                    str(fleet.profile[at]),
                    float(trials[at]),
                )
                for at in members
            ]
            for members, by in ((treated, truth), (control, 0.0))
        ]
        found = contrast(*sides, step=gate.step)
        at_level = level(number, len(GATES), ends=ends)
        told = verdict(gate, found, at_level, ALL_TELL)
        states.append(told.state)
        if number_of == FAILURES and ends:
            strict = level(number, 1, ends=ends)
            most = most_harm(sides[0], sides[1], strict / 2.0, falls=False)
            worst = verdict(WORST, found, strict, ALL_TELL, most=most).state
        true = math.expm1(truth) if gate.is_relative else truth
        includes &= told.low is None or told.high is None or told.low <= true <= told.high
        moved = float(after[treated].mean() + truth - before[treated].mean())
        alarm |= moved / gate.bound > 1.0
    return Look(len(treated), tuple(states), worst, includes, alarm, ends > 0)


class Course(NamedTuple):
    """What became of a rollout."""

    halted_at: int
    """Devices with the release when a gate halted it; 0 for never."""

    passed: bool
    """Whether all gates passed in its last stage."""

    always_true: bool
    """Whether no interval ever left out the truth."""

    ever_passed: bool
    """Whether any stage passed the gate on failures."""

    worst_passed: bool
    """The same of the gate in the worst case."""

    alarmed_at: int
    """Devices when the fixed threshold would have halted it; 0 for never."""


def course(fleet: Fleet, harm: Harm) -> Course:
    """Roll a release out to the end, as if no gate held it."""
    halted = alarmed = 0
    always, passed, ever, worst = True, False, False, False
    for look in looks(fleet, harm):
        always &= look.includes_truth
        if GateState.FAIL in look.states and not halted:
            halted = look.treated
        if look.alarm and not alarmed:
            alarmed = look.treated
        passed = look.is_last and set(look.states) == {GateState.PASS}
        ever |= look.is_last and look.states[FAILURES] is GateState.PASS
        worst |= look.worst is GateState.PASS
    return Course(halted, passed and not halted, always, ever, worst, alarmed)


def measure(quick: bool) -> list[Row]:
    """Roll out harmless and harmful releases."""
    usual = QUICK_ROLLOUTS if quick else ROLLOUTS
    rollouts = int(os.environ.get("GATES_ROLLOUTS", usual))
    seed = int(os.environ.get("GATES_SEED", DEVELOPMENT if quick else VALIDATION))
    rows = []
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        for devices in (100, 300) if quick else (60, 300, 1000):
            for number, harm in enumerate(ALL):
                some = rollouts if harm is NONE else max(rollouts // 10, 10)
                if devices > 300:  # noqa: PLR2004
                    some = max(some // 5, 10)
                seeds = [(seed, devices, number, each) for each in range(some)]
                rows += _rows(devices, harm, list(pool.map(_rolled_out, seeds, chunksize=5)))
    return rows


def _rolled_out(seeds: tuple[int, int, int, int]) -> Course:
    """Draw a fleet and roll out."""
    _, devices, number, _ = seeds
    harm, chance = ALL[number], np.random.Generator(np.random.PCG64(list(seeds)))
    return course(drawn(devices, chance, is_uneven=harm is UNEVEN), harm)


def _rows(devices: int, harm: Harm, found: list[Course]) -> list[Row]:
    bound = ERROR + 3 * math.sqrt(ERROR * (1 - ERROR) / len(found))

    def share(name: str, values: list[bool], at_most: float | None = None) -> Row:
        mean = sum(values) / len(values)
        return alone(f"{devices} devices, {harm.name}: {name}", [mean], unit="1", at_most=at_most)

    halted = [one.halted_at > 0 for one in found]
    rows = [share("halted by a gate", halted)]
    if harm is FEW:
        rows += [
            share("a stage passed the usual gate", [one.ever_passed for one in found]),
            share("passed in the worst case", [one.worst_passed for one in found], bound),
        ]
    elif harm in {NONE, UNEVEN}:
        rows = [
            share("halted by a gate", halted, bound),
            share("an interval ever left out the truth", [not o.always_true for o in found], bound),
            share("passed in the last stage", [one.passed for one in found]),
            share("passed in the worst case", [one.worst_passed for one in found]),
        ]
    elif harm in LIMITS:
        rows = [
            share("halted by a gate", halted, bound),
            share("passed in the last stage", [one.passed for one in found], bound),
        ]
    elif reached := [float(one.halted_at) for one in found if one.halted_at]:
        rows.append(alone(f"{devices} devices, {harm.name}: devices when halted", reached, unit=""))
    rows.append(share("halted by a fixed threshold", [one.alarmed_at > 0 for one in found]))
    return rows


if __name__ == "__main__":
    sys.exit(main("Gates: false and missed halts", measure))
