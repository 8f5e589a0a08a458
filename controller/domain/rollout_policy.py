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
- A gate that fails halts the rollout at once. A stage ends only when all gates have passed when it
  had soaked, but for one that reaches too few devices to tell; the operator may go on despite gates
  that hold.
- A rollout whose devices another one took ends when none is left and none in flight, also if it is
  paused. The other does not end before that, and takes in those that finished there.
- A stage that needs a shadow begins when that has passed, or when nobody is left to start. One
  that fails halts the rollout.
- The control group keeps the old release until the gates have passed in the last stage. Then it
  gets the new one, as part of that stage.
- What a stage has of its own, a soak time, approval or gates, holds while it is the current one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from controller.domain.abort_rules import broken_rule
from controller.domain.failure_limits import NO_BOUND, share_of
from controller.domain.gates.states import GateState
from controller.domain.rollout_view import GateView, RolloutView
from controller.domain.stage_progress import holding, needs_approval, target_of
from controller.domain.states import ACTIVE_ROLLOUTS, RolloutState
from controller.domain.wording import counted
from wire.durations import format_duration

Action = Literal["hold", "advance", "halt", "finish"]

HARMLESS_PHASES = frozenset({"", "preflight", "fetching", "verifying", "staging"})
"""The phases of an install in which nothing of the release has run yet."""


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
    if not is_last and needs_approval(view):
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
    complete_s = view.stage_complete_at_s or 0.0
    if gate.looked_at_s < complete_s:
        return "not looked at yet in this stage"
    if gate.state is GateState.PASS and gate.looked_at_s < complete_s + view.soak_s:
        return "passed while it soaked, and is looked at once more"
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
