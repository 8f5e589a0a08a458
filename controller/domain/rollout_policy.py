"""What a rollout does next: a pure function of what is known.

Rules:
- The abort rules come first, also while the rollout is paused (`failure_limits`).
- Devices start only while the rollout runs, and only those that are online. None starts while
  `max_in_flight` are in flight, and at most the stage's target is started in total.
- A device that returns with its order goes on by itself, whatever the controller wants. It is in
  flight again even if there are more than `max_in_flight` then, and no other starts until there is
  room.
- A device that was started counts towards its stage, whatever becomes of it: no other device
  replaces one that failed or is away, so that a bad release reaches no more than the stage.
- All limits are measured with the rollout's own clock, which stands still while no controller runs.
- A device that was online for longer than its deadline without an outcome counts as failed.
- A device that goes offline before the release may have run on it waits: it has not failed, and it
  is not in flight until it returns.
- A device that goes offline later stays in flight, because the release may be the cause. If it is
  away for longer than the offline limit, it counts as failed.
- A stage waits for devices that are offline up to the offline limit, and then goes on without them,
  but never before one device has finished; until then it tries one more device after each limit.
  A rollout that ends without devices leaves them its order.
- A way back to what devices had waits for none that is offline, but at its very end: a stage goes
  on without it, and it has its order when it returns, whatever it was doing when it left.
- Failures that the operator acknowledged do not count.
- A gate that fails halts the rollout at once. A stage ends only when all gates have passed since it
  was complete, but for one that reaches too few devices to tell; the operator may go on despite
  gates that hold.
- A rollout whose devices another one took ends when none is left and none in flight, also if it is
  paused. The other does not end before that, and takes in those that finished there.
- A stage that needs a shadow begins when that has passed, or when nobody is left to start. One
  that fails halts the rollout.
- The control group keeps the old release until the gates have passed in the last stage. Then it
  gets the new one, as part of that stage.
- Stages are cumulative; the last one includes devices that joined late.
- A stage that chooses its devices, and each before it, starts no others, and does not wait for more
  than there are.
- What a stage has of its own, a soak time, approval or gates, holds while it is the current one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from controller.domain.failure_limits import NO_BOUND, failures, share_of
from controller.domain.gates.states import LEAST_DEVICES, GateState
from controller.domain.stage_shadow import ShadowNeed, ShadowView
from controller.domain.states import ACTIVE_ROLLOUTS, RolloutState
from wire.durations import format_duration

OnHalt = Literal["keep", "revert"]
"""What becomes of devices that have the release when a rule halts their rollout."""

Action = Literal["hold", "advance", "halt", "finish"]
StageState = Literal[
    "waiting",
    "waiting_for_shadow",
    "running",
    "soaking",
    "waiting_for_gates",
    "waiting_for_devices",
    "awaiting_approval",
    "done",
]
_ROUNDING = 1e-9
"""Keeps 10 % of 30 at 3 although 0.1 has no exact binary form."""

HARMLESS_PHASES = frozenset({"", "preflight", "fetching", "verifying", "staging"})
"""The phases of an install in which nothing of the release has run yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSpec:
    """How far one stage goes: a number of devices or a share of them, earlier stages included."""

    count: int | None = None
    percent: float | None = None
    selector: str = ""
    """By which it chooses its devices; `count` then says how many there are."""

    soak_s: float | None = None
    """Its own; None for that of the rollout."""

    approval: bool | None = None
    """Whether the next stage waits for the operator; None for what holds in the rollout."""

    asks_gates: bool | None = None
    """Whether it reaches enough devices that can be compared, where stages choose some; None where
    its size tells."""

    shadow: ShadowNeed | None = None
    """What the release must have shown as a shadow before it begins; None for nothing."""

    def is_enough(self, reached: int) -> bool:
        """Tell whether it waits for gates.

        Args:
            reached: How many devices have the release by its end.
        """
        return reached >= LEAST_DEVICES if self.asks_gates is None else self.asks_gates


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the operator set for a rollout."""

    max_in_flight: int
    soak_s: float
    device_deadline_s: float
    """How long a device may be online without an outcome."""

    offline_limit_s: float
    """How long a stage waits for devices that are offline, and how long a device may be away while
    the release may run on it."""

    max_failures: int
    max_failure_percent: float | None
    min_finished: int
    approval: bool
    max_refused: int | None = None
    """Of devices that refused; None if they count as failed."""

    max_timed_out: int | None = None
    """Of devices that were silent or lost; None if they count as failed."""

    worst_case: bool = False
    """Whether a device starts only if the share of failed ones is kept at worst, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InFlight:
    """A device that was started and has not finished."""

    device: str
    online: bool = True
    online_s: float
    """How long it was online since it was started."""

    away_s: float = 0.0
    """How long it is offline now."""

    phase: str = ""
    """What it reported last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateView:
    """A gate, and what the last look at it has shown."""

    text: str
    stage: int | None = None
    """The only stage in which it is asked; None for all."""

    state: GateState = GateState.HOLD
    reason: str = ""
    looked_at_s: float = -math.inf
    """By the rollout's own clock."""

    is_waived: bool = False
    """Whether the operator went on although it had failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutView:
    """Everything that a decision needs."""

    now_s: float
    """The rollout's own clock."""

    state: RolloutState
    limits: Limits
    is_way_back: bool = False
    """Whether it brings devices back to what they had."""

    stages: tuple[StageSpec, ...]
    stage: int
    """The current one, from 1."""

    stage_complete_at_s: float | None
    """The time since which every device of the current stage that is not offline has finished."""

    approved_stage: int
    """The last stage that the operator approved."""

    initial_devices: int
    """Devices when the rollout was made; the percentages of all stages but the last refer to it."""

    succeeded: int
    failed: int
    """Devices that refused or timed out among them."""

    refused: int = 0
    timed_out: int = 0
    """How many of the failed did; without those that the operator acknowledged."""

    acknowledged: int = 0
    """Failed devices that the operator acknowledged."""

    in_flight: tuple[InFlight, ...]
    waiting: int = 0
    """Devices that have their order and went offline; nothing is expected of them."""

    returned: tuple[str, ...] = ()
    """Those of them that are online again."""

    pending: int
    """Devices that were not started."""

    control: int = 0
    """Devices of the control group that keep the old release for now; `pending` is without them."""

    reachable: int | None = None
    """Those of `pending` that may start in this stage, where stages choose devices; None for all.
    """

    may_start: int | None = None
    """How many devices the rate of starting lets start now; None for any number."""

    gates: tuple[GateView, ...] = ()
    """Empty when the control group has got the release: nothing is left to compare with."""

    gates_passed_by_hand: int = 0
    """The last stage that the operator let end despite gates that held."""

    shadow: ShadowView | None = None
    """That for which the current stage waits; None if it needs none."""

    superseded_by: str = ""
    """The rollout that took its devices that had not started."""

    awaits: str = ""
    """An older one, whose devices this one takes in when that has ended."""

    candidates: tuple[str, ...] = ()
    """The first of those that are online, in the order in which they will start: at least as many
    as `wanted` says."""

    @property
    def finished(self) -> int:
        """Devices with an outcome."""
        return self.succeeded + self.failed

    @property
    def started(self) -> int:
        """Devices that were started, whatever has become of them."""
        return self.finished + len(self.in_flight) + self.waiting

    @property
    def devices(self) -> int:
        """Devices that take part, without those that were skipped."""
        return self.started + self.pending + self.control

    @property
    def soak_s(self) -> float:
        """How long the current stage must stay good."""
        own = self.stages[self.stage - 1].soak_s
        return self.limits.soak_s if own is None else own

    @property
    def approval(self) -> bool:
        """Whether the stage after the current one waits for the operator."""
        own = self.stages[self.stage - 1].approval
        return self.limits.approval if own is None else own

    @property
    def asks_approval(self) -> bool:
        """Whether any stage waits for the operator."""
        return any(self.limits.approval if s.approval is None else s.approval for s in self.stages)

    @property
    def waits_for_shadow(self) -> bool:
        """Whether nobody starts in the current stage before its shadow has passed."""
        is_left = self.pending + self.control > 0
        return is_left and self.shadow is not None and self.shadow.holds

    @property
    def asked(self) -> tuple[GateView, ...]:
        """The gates that are asked in the current stage."""
        return tuple(gate for gate in self.gates if gate.stage in {None, self.stage})


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What to do now, and why."""

    action: Action
    reason: str
    start: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()
    """Devices in flight that count as failed because their deadline has passed."""

    lost: tuple[str, ...] = ()
    """Devices in flight that count as failed because they did not come back."""

    parted: tuple[str, ...] = ()
    """Devices in flight that wait from now on."""

    returned: tuple[str, ...] = ()
    """Devices that waited and are in flight again."""

    leave: int = 0
    """How many devices that were not started get the release when they return, after the end."""

    releases_control: bool = False
    """Whether the control group gets the release from now on."""

    stage_complete_at_s: float | None = None
    """The time since which the current stage is complete; the caller saves it."""


def decide(view: RolloutView) -> Decision:
    """Decide what a rollout does next.

    Args:
        view: What is known of it.

    Returns:
        The decision with its reason; the reason stays the same as long as nothing else changes.
    """
    if view.state not in ACTIVE_ROLLOUTS:
        return Decision(action="hold", reason=f"the rollout is {view.state}")
    seen = _changes(view)
    fault = broken_rule(view, silent=len(seen.silent), lost=len(seen.lost))
    if fault is not None:
        return Decision(action="halt", reason=fault, silent=seen.silent, lost=seen.lost)
    left = view.pending + view.control + _busy(view, seen)
    if view.superseded_by and not left:
        reason = f"rollout {view.superseded_by} took its devices, and what had begun has ended"
        return replace(seen, action="finish", reason=reason)
    if reason := _stands(view):
        return replace(seen, reason=reason, stage_complete_at_s=view.stage_complete_at_s)
    target = target_of(view)
    busy = _busy(view, seen)
    if busy or (view.started < target and view.candidates):
        return replace(
            seen,
            reason=f"stage {view.stage} brings the release to {counted(target)}"
            + _held_back(view, seen, busy),
            start=view.candidates[: _room(view, seen, busy)],
        )
    return _after_stage(view, seen, target)


def _stands(view: RolloutView) -> str:
    """Return why nobody starts, whatever the stage has come to; empty if somebody may."""
    if view.state is RolloutState.PAUSED:
        return "paused by the operator"
    if view.waits_for_shadow and view.shadow is not None:
        return f"stage {view.stage} waits for its shadow: {view.shadow.reason}"
    return ""


def wanted(view: RolloutView) -> int:
    """Return how many candidates a decision can use; to find them takes long in a large fleet.

    Args:
        view: What is known of a rollout but its candidates.
    """
    if view.state is not RolloutState.RUNNING or _stands(view):
        return 0
    seen = _changes(view)
    busy = _busy(view, seen)
    # A stage whose devices are all away tries another one. One that the rate holds back has some
    # left to start.
    is_proven = busy or view.finished + len(seen.silent) + len(seen.lost)
    is_slowed = view.may_start is not None and view.started < target_of(view)
    return max(_room(view, seen, busy), 0 if is_proven and not is_slowed else 1)


def _busy(view: RolloutView, seen: Decision) -> int:
    """Return how many devices are in flight when a decision about them is saved."""
    gone = len(seen.silent) + len(seen.lost) + len(seen.parted)
    return len(view.in_flight) - gone + len(seen.returned)


def _room(view: RolloutView, seen: Decision, busy: int) -> int:
    """Return how many devices may start."""
    room = min(target_of(view) - view.started, view.limits.max_in_flight - busy)
    room = room if view.may_start is None else min(room, view.may_start)
    return max(0, min(room, _room_at_worst(view, seen, busy)))


def _room_at_worst(view: RolloutView, seen: Decision, busy: int) -> int:
    """Return how many may start so that the share of failed ones is kept, whatever they do."""
    limits = view.limits
    if not limits.worst_case or limits.max_failure_percent is None:
        return NO_BOUND
    share = share_of(view, gone=len(seen.silent) + len(seen.lost))
    # One at a time goes on, or a rollout that waits for nobody would never end.
    return max(share.room(limits.max_failure_percent, limits.min_finished), 0 if busy else 1)


def _held_back(view: RolloutView, seen: Decision, busy: int) -> str:
    if _room_at_worst(view, seen, busy) >= min(
        target_of(view) - view.started, view.limits.max_in_flight - busy
    ):
        return ""
    most = view.limits.max_failure_percent
    return f"; others wait, because at worst more than {most:g} % of those that began would fail"


def broken_rule(view: RolloutView, *, silent: int, lost: int = 0) -> str | None:
    """Say which abort rule is broken.

    Args:
        view: What is known.
        silent: Devices in flight that are past their deadline.
        lost: Devices in flight that did not come back.

    Returns:
        The reason to halt, or None.
    """
    return next(_broken_rules(view, silent=silent, lost=lost), None)


def _broken_rules(view: RolloutView, *, silent: int, lost: int) -> Iterator[str]:
    limits, share = view.limits, share_of(view, gone=silent + lost)
    kinds = failures(view, gone=silent + lost)
    gone = f", {silent} of them sent no report before the deadline" if silent else ""
    gone += f", {lost} of them went offline and did not come back" if lost else ""
    what = gone if limits.max_timed_out is None else ""
    if view.acknowledged:
        what += f", not counting {view.acknowledged} that the operator acknowledged"
    if share.failed > limits.max_failures:
        yield f"{counted(share.failed)} failed{what}; allowed: {limits.max_failures}"
    if limits.max_refused is not None and kinds.refused > limits.max_refused:
        yield f"{counted(kinds.refused)} refused the release; allowed: {limits.max_refused}"
    if limits.max_timed_out is not None and kinds.timed_out > limits.max_timed_out:
        yield f"{counted(kinds.timed_out)} timed out{gone}; allowed: {limits.max_timed_out}"
    for gate in view.asked:
        if gate.state is GateState.FAIL and not gate.is_waived:
            yield f"gate {gate.text} failed: {gate.reason}"
    if view.shadow is not None and view.shadow.fails:
        yield f"the shadow before stage {view.stage} failed: {view.shadow.reason}"
    most = limits.max_failure_percent
    if most is None or share.finished < limits.min_finished or share.certain_percent <= most:
        return
    worst = f"; at worst it is {share.worst_percent:.1f} %" if share.unknown else ""
    yield (
        f"{share.certain_percent:.1f} % of {share.finished} finished devices failed{what}, "
        f"at most {most:g} % are allowed{worst}"
    )


def counted(devices: int) -> str:
    """Return a number of devices as text: `1 device`, `2 devices`."""
    return "1 device" if devices == 1 else f"{devices} devices"


def target_of(view: RolloutView) -> int:
    """Return how many devices the current stage brings to the release, without those held back."""
    most = view.devices - view.control
    if view.reachable is not None:
        most = min(most, view.started + view.reachable)
    return min(stage_targets(view)[view.stage - 1], most)


def holding(view: RolloutView) -> tuple[GateView, ...]:
    """Return the gates for which the current stage waits when all else is done."""
    is_enough = view.stages[view.stage - 1].is_enough(target_of(view))
    if view.gates_passed_by_hand >= view.stage or not is_enough:
        return ()
    since_s = view.stage_complete_at_s if view.stage_complete_at_s is not None else math.inf
    return tuple(
        gate
        for gate in view.asked
        if not gate.is_waived and (gate.state is not GateState.PASS or gate.looked_at_s < since_s)
    )


def stage_targets(view: RolloutView) -> tuple[int, ...]:
    """Return how many devices each stage brings to the release, earlier stages included."""
    return targets_of(view.stages, view.devices, view.initial_devices)


def targets_of(stages: Sequence[StageSpec], devices: int, initial: int) -> tuple[int, ...]:
    """Return how many devices each of some stages brings to the release.

    Args:
        stages: The stages.
        devices: How many devices take part.
        initial: How many did when the rollout was made.

    Returns:
        For each stage, earlier ones included.
    """
    targets: list[int] = []
    reached = 0
    for number, stage in enumerate(stages, start=1):
        base = devices if number == len(stages) else initial
        reached = min(max(reached, stage_size(stage, base)), devices)
        targets.append(reached)
    return tuple(targets)


def stage_size(stage: StageSpec, devices: int) -> int:
    """Return how many of so many devices a stage asks for."""
    if stage.count is not None:
        return stage.count
    return math.ceil(devices * (stage.percent or 0.0) / 100.0 - _ROUNDING)


def stage_states(view: RolloutView) -> tuple[StageState, ...]:
    """Return the state of each stage, to be shown to people."""
    is_short = view.started - view.waiting < target_of(view)
    return tuple(
        _stage_state(view, number, is_short=is_short) for number in range(1, len(view.stages) + 1)
    )


def _stage_state(view: RolloutView, number: int, *, is_short: bool) -> StageState:
    if number != view.stage:
        return "done" if number < view.stage else "waiting"
    if view.state is RolloutState.SUCCEEDED:
        return "done"
    if view.waits_for_shadow:
        return "waiting_for_shadow"
    if view.stage_complete_at_s is None or (is_short and not view.finished):
        return "running"
    state: StageState = "waiting_for_devices" if is_short else "soaking"
    if view.now_s - view.stage_complete_at_s < view.soak_s:
        state = "soaking"
    elif holding(view):
        state = "waiting_for_gates"
    elif number < len(view.stages) and _needs_approval(view):
        state = "awaiting_approval"
    return state


def _changes(view: RolloutView) -> Decision:
    """Return what has become of the devices with an order, as a decision that does no more."""
    limits = view.limits
    silent, lost, parted = [], [], []
    for item in view.in_flight:
        if item.online_s > limits.device_deadline_s:
            silent.append(item.device)
        elif not item.online and (view.is_way_back or item.phase in HARMLESS_PHASES):
            parted.append(item.device)
        elif not item.online and item.away_s > limits.offline_limit_s:
            lost.append(item.device)
    return Decision(
        action="hold",
        reason="",
        silent=tuple(silent),
        lost=tuple(lost),
        parted=tuple(parted),
        returned=view.returned,
    )


def _after_stage(view: RolloutView, seen: Decision, target: int) -> Decision:
    """Decide about a stage in which nothing is left to do but for devices that are offline.

    Args:
        view: What is known.
        seen: What has become of the devices with an order.
        target: How many devices the stage brings to the release.

    Returns:
        The decision.
    """
    short = max(0, target - view.started + view.waiting + len(seen.parted))
    since_s = view.stage_complete_at_s if view.stage_complete_at_s is not None else view.now_s
    held = replace(seen, stage_complete_at_s=since_s)
    passed_s, is_last = view.now_s - since_s, view.stage == len(view.stages)
    has_proof = view.is_way_back or view.finished + len(seen.silent) + len(seen.lost)
    if short and not has_proof:
        return _without_proof(view, held, passed_s)
    if reason := _waits(view, short, passed_s):
        return replace(held, reason=reason)
    if is_last and view.awaits:
        return replace(held, reason=f"waits for devices that finish in rollout {view.awaits}")
    if is_last and view.control:
        group = f"the control group of {counted(view.control)}"
        reason = f"stage {view.stage} is complete: {group} gets the release"
        return replace(seen, releases_control=True, reason=reason)
    if is_last:
        return replace(
            held,
            action="finish",
            reason=f"{view.succeeded} of {counted(view.devices)} installed it{_left(short)}",
            leave=max(0, target - view.started),
        )
    waits = " when its shadow agrees" if view.stages[view.stage].shadow else ""
    return replace(
        seen,
        action="advance",
        reason=f"stage {view.stage} is complete: stage {view.stage + 1} begins{waits}",
    )


def _waits(view: RolloutView, short: int, passed_s: float) -> str:
    """Return for what a stage waits whose devices have finished; empty for nothing.

    Args:
        view: What is known.
        short: How many of its devices are offline.
        passed_s: How long it has been complete.
    """
    is_last = view.stage == len(view.stages)
    if passed_s < view.soak_s:
        return f"stage {view.stage} is complete and soaks for {view.soak_s:g} s"
    if gates := holding(view):
        what = "; ".join(f"{gate.text}: {_held_by(view, gate)}" for gate in gates)
        return f"stage {view.stage} waits for gates: {what}"
    if not is_last and _needs_approval(view):
        return f"stage {view.stage + 1} waits for approval"
    # Where stages need approval, the operator decides whether to go on without devices.
    by_hand = view.approval and not is_last
    goes_on = by_hand or (view.is_way_back and not is_last)
    if short and not goes_on and passed_s < view.limits.offline_limit_s:
        limit = format_duration(view.limits.offline_limit_s)
        missing = f"{counted(short)} that {'is' if short == 1 else 'are'} offline"
        return f"stage {view.stage} waits for {missing}, for {limit} at most"
    return ""


def _held_by(view: RolloutView, gate: GateView) -> str:
    if gate.looked_at_s < (view.stage_complete_at_s or 0.0):
        return "not looked at yet in this stage"
    return gate.reason


def _without_proof(view: RolloutView, held: Decision, passed_s: float) -> Decision:
    """Decide about a stage whose devices are all away."""
    may_start = view.may_start is None or view.may_start > 0
    if view.candidates and passed_s >= view.limits.offline_limit_s and may_start:
        reason = f"stage {view.stage} tries another device, as none has come back"
        start = view.candidates[:1]
        return replace(held, reason=reason, start=start, stage_complete_at_s=None)
    reason = f"stage {view.stage} waits for the first of its devices to come online"
    return replace(held, reason=reason)


def _left(devices: int) -> str:
    if devices == 0:
        return ""
    verbs = ("is", "gets") if devices == 1 else ("are", "get")
    return f"; {counted(devices)} {verbs[0]} offline and {verbs[1]} it on return"


def _needs_approval(view: RolloutView) -> bool:
    return view.approval and view.approved_stage <= view.stage
