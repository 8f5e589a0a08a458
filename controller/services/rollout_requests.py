"""What a request for a new rollout may ask for."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from itertools import pairwise

from controller.domain.gates.control import LEAST_OF_ROLLOUT
from controller.domain.gates.states import LEAST_DEVICES
from controller.domain.rollout_policy import Limits, StageSpec, counted, stage_size
from controller.errors import InvalidRequestError, UnfitError
from controller.rollout_schemas import RolloutRequest, Stage

MAX_STAGES = 100


def check_unfit(request: RolloutRequest, unfit: Mapping[str, str], devices: int) -> None:
    """Refuse a rollout for its devices that cannot take the release.

    Raises:
        UnfitError: There are such devices, and the operator has not said what becomes of them; or
            they are to be left out, and there are no others.
    """
    if not unfit or request.unfit == "allow":
        return
    if request.unfit == "exclude" and len(unfit) < devices:
        return
    first, reason = next(iter(unfit.items()))
    check = f"`fleet rollout check {request.release}"
    check += f" --selector {shlex.quote(request.selector)}`" if request.selector else "`"
    if len(unfit) == devices:
        which = f"{first} cannot take {request.release}"
        if devices > 1:
            which = f"none of {devices} devices can take {request.release}, such as {first}"
        raise UnfitError(
            f"{which}: {reason}",
            remedy=f"{check} names them; --allow-unfit tries them all the same",
        )
    raise UnfitError(
        f"{len(unfit)} of {counted(devices)} cannot take {request.release}, such as {first}: "
        f"{reason}",
        remedy=f"{check} names them; --exclude-unfit leaves them out, and --allow-unfit tries them "
        "all the same",
    )


def check_gates(request: RolloutRequest, devices: int) -> None:
    """Refuse gates that can never pass.

    Raises:
        InvalidRequestError: The rollout has too few devices.
    """
    least = LEAST_OF_ROLLOUT if request.control_percent else LEAST_DEVICES
    if request.gates and devices < least:
        raise InvalidRequestError(
            f"{counted(devices)} cannot show what a gate asks: it takes {least}, as each device is "
            "one observation",
            remedy="leave the gates out, or choose more devices"
            + ("; --control 0 compares devices with themselves" if least > LEAST_DEVICES else ""),
        )


def checked_stages(stages: Sequence[Stage]) -> tuple[StageSpec, ...]:
    """Return the stages that a request asks for.

    Raises:
        InvalidRequestError: They are too many or none, or one has not either a count or a percent.
    """
    if not 1 <= len(stages) <= MAX_STAGES:
        raise InvalidRequestError(
            f"a rollout has 1 to {MAX_STAGES} stages, not {len(stages)}",
            remedy="give fewer stages" if stages else "give a stage, such as 100%",
        )
    for number, stage in enumerate(stages, start=1):
        if (stage.count is None) == (stage.percent is None):
            raise InvalidRequestError(
                f"stage {number} needs either a count or a percent", remedy="give one of the two"
            )
    return tuple(StageSpec(count=stage.count, percent=stage.percent) for stage in stages)


def check_growing(stages: Sequence[StageSpec], devices: int) -> None:
    """Refuse stages of which a later one reaches fewer of so many devices.

    Raises:
        InvalidRequestError: One does.
    """
    for before, after in pairwise(stages):
        # Of percentages the greater may round to the same number of devices, not to a smaller one.
        falls = (before.percent or 0.0) > (after.percent or 100.0)
        if falls or stage_size(before, devices) > stage_size(after, devices):
            raise InvalidRequestError(
                f"a stage of {_words(after)} reaches fewer of {counted(devices)} than the one of "
                f"{_words(before)} before it",
                remedy="stages are cumulative: give each as a total",
            )


def _words(stage: StageSpec) -> str:
    return f"{stage.percent:g} %" if stage.percent is not None else counted(stage.count or 0)


def limits_of(request: RolloutRequest) -> Limits:
    """Return the limits that a request sets."""
    return Limits(
        max_in_flight=request.max_in_flight,
        soak_s=request.soak_s,
        device_deadline_s=request.device_deadline_s,
        offline_limit_s=request.offline_limit_s,
        max_failures=request.max_failures,
        max_failure_percent=request.max_failure_percent,
        min_finished=request.min_finished,
        approval=request.approval,
    )
