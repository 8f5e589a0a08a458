"""What the stages of a new rollout are refused for, and what they come to for its devices.

Rules:
- A rollout and its dry run are refused for the same, in the same words.
- What would have no effect is refused: a stage that no device matches, gates that are never asked,
  an approval after the last stage.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict

from controller.domain.gates.control import LEAST_OF_ROLLOUT
from controller.domain.gates.language import MAX_GATES
from controller.domain.gates.states import LEAST_DEVICES
from controller.domain.rollout_view import StageSpec
from controller.domain.selectors import is_label_key, parse_selector
from controller.domain.stage_progress import targets_of
from controller.domain.stage_shadow import ShadowNeed
from controller.domain.stages import WHOLE_PERCENT, Growth, grown, selectors, sized
from controller.domain.start_rate import StartRate
from controller.domain.starting_order import StartingOrder
from controller.domain.wording import counted
from controller.errors import InvalidRequestError
from controller.rollout_schemas import RolloutRequest
from controller.services.gates import checked_gates
from controller.stage_schemas import MAX_STAGES, Rate, Stage
from telemetry.server.store import TelemetryStore


def check_stages(request: RolloutRequest) -> None:
    """Refuse stages that make no sense, whatever devices there are.

    Raises:
        InvalidRequestError: There are none or too many, or one makes no sense.
        SelectorError: One cannot be read.
    """
    stages = request.stages
    if not 1 <= len(stages) <= MAX_STAGES:
        raise InvalidRequestError(
            f"a rollout has 1 to {MAX_STAGES} stages, not {len(stages)}",
            remedy="give fewer stages" if stages else "give a stage, such as 100%",
        )
    for number, stage in enumerate(stages, start=1):
        sizes = (stage.count, stage.percent, stage.selector, stage.grow)
        if sum(size is not None for size in sizes) != 1:
            raise InvalidRequestError(
                f"stage {number} needs a count, a percent, a selector or a growth",
                remedy="give one of the four",
            )
        if stage.selector is not None and parse_selector(stage.selector).tree is None:
            raise InvalidRequestError(
                f"stage {number} chooses all devices", remedy="write it as 100%"
            )
        if stage.grow is not None and not 1 < number == len(stages):
            raise InvalidRequestError(
                f"stage {number} grows from the one before it until all devices have the release",
                remedy="let it be the last, after one such as 1 or 5%",
            )
        if stage.shadow is not None and stage.shadow.agreement_percent >= WHOLE_PERCENT:
            raise InvalidRequestError(
                f"the shadow before stage {number} should always agree, which no number of "
                "requests shows",
                remedy="give less than 100 %, such as 99.9 %",
            )
        if stage.shadow is not None and stage.shadow.agreement_percent <= 1.0:
            percent = stage.shadow.agreement_percent
            raise InvalidRequestError(
                f"the shadow before stage {number} would have to agree in {percent:g} % only",
                remedy=f"write per cent, such as {WHOLE_PERCENT * percent:g}",
            )
    _check_last(stages[-1])
    if request.spread and not is_label_key(request.spread):
        raise InvalidRequestError(
            f"{request.spread[:64]!r} is no label", remedy="spread over a label, such as site"
        )


def _check_last(last: Stage) -> None:
    """Refuse a last stage with what it cannot have.

    Raises:
        InvalidRequestError: It does.
    """
    if last.selector is not None:
        raise InvalidRequestError(
            "the last stage chooses its devices: nobody else would ever get the release",
            remedy="end with 100%; --selector chooses the devices of the whole rollout",
        )
    if last.grow is not None and last.gates:
        raise InvalidRequestError(
            "a stage that grows stands for several, and has no gates of its own",
            remedy="give them to the whole rollout, or name each stage",
        )
    if last.grow is not None and last.shadow is not None:
        raise InvalidRequestError(
            "a stage that grows stands for several, and waits for no shadow of its own",
            remedy="let an earlier stage wait for it, or name each stage",
        )
    if last.approval and last.grow is None:
        raise InvalidRequestError(
            "the last stage has an approval of its own, and no stage after it would wait for one",
            remedy="set it for the stage before",
        )


def own_gates(telemetry: TelemetryStore, request: RolloutRequest) -> dict[int, tuple[str, ...]]:
    """Return the gates of single stages as they are shown, by the number of the stage.

    Args:
        telemetry: What devices measured.
        request: The rollout.

    Raises:
        InvalidRequestError: They cannot be read, are given twice, or are too many with those of
            the rollout.
    """
    count = len(request.gates) + sum(len(stage.gates) for stage in request.stages)
    if count > MAX_GATES:
        raise InvalidRequestError(
            f"{count} gates are more than the limit of {MAX_GATES}",
            remedy="leave some out: each makes the others less sharp",
        )
    return {
        number: tuple(
            gate.text
            for gate in checked_gates(telemetry, [*request.gates, *stage.gates])[
                len(request.gates) :
            ]
        )
        for number, stage in enumerate(request.stages, start=1)
        if stage.gates
    }


def wanted_selectors(request: RolloutRequest) -> list[str]:
    """Return the selectors by which stages of a request choose devices, in order."""
    return [stage.selector for stage in request.stages if stage.selector]


def specs(
    stages: Sequence[Stage], order: StartingOrder, devices: Collection[str]
) -> tuple[StageSpec, ...]:
    """Return the stages of a request for some devices.

    Args:
        stages: The stages.
        order: In which order the devices start.
        devices: Those that take part.

    Raises:
        InvalidRequestError: They grow so slowly that they are too many.
    """
    plain = [
        StageSpec(
            count=stage.count if stage.selector is None else 0,
            percent=stage.percent,
            selector=stage.selector or "",
            soak_s=stage.soak_s,
            approval=stage.approval,
            shadow=ShadowNeed(**asdict(stage.shadow)) if stage.shadow else None,
        )
        for stage in stages
        if stage.grow is None
    ]
    sizes = order.sizes(devices)
    made = list(sized(plain, sizes))
    last = stages[-1]
    if last.grow is not None:
        growth = Growth(factor=last.grow, soak_s=last.soak_s, approval=last.approval)
        made = grown(made, growth, len(devices), MAX_STAGES)
    if len(made) > MAX_STAGES:
        raise InvalidRequestError(
            f"growing {last.grow:g} times takes more than {MAX_STAGES} stages",
            remedy="give a larger factor, such as x3",
        )
    return sized(made, sizes)


def check_chosen(request: RolloutRequest, order: StartingOrder, devices: Collection[str]) -> None:
    """Refuse stages that choose no device, and a label that none has.

    Raises:
        InvalidRequestError: There is one.
    """
    sizes = order.sizes(devices)
    for group, text in enumerate(wanted_selectors(request)):
        if not sizes[group]:
            rest = " that no stage before has" if group else ""
            raise InvalidRequestError(
                f"no device of the rollout matches the stage {text!r}{rest}",
                remedy="leave the stage out, or choose other devices; "
                "`fleet device list --selector` tells whom a selector means",
            )
    if order.values is not None and not any(device in order.values for device in devices):
        raise InvalidRequestError(
            f"no device of the rollout has the label {request.spread!r}",
            remedy="`fleet device show` tells the labels of a device",
        )


def check_gates(
    request: RolloutRequest,
    stages: Sequence[StageSpec],
    order: StartingOrder,
    devices: Collection[str],
) -> None:
    """Refuse gates that can never pass, or are never asked.

    Args:
        request: The rollout.
        stages: Its stages with what follows from its devices.
        order: In which order the devices start.
        devices: Those that take part.

    Raises:
        InvalidRequestError: There are too few devices, or too few like them to be compared with.
    """
    own = {number for number, stage in enumerate(request.stages, start=1) if stage.gates}
    if not request.gates and not own:
        return
    sizes = order.sizes(devices)
    most = max(sizes.values(), default=0)
    least = LEAST_OF_ROLLOUT if request.control_percent else LEAST_DEVICES
    if most < least:
        more = "; --control 0 compares devices with themselves" if least > LEAST_DEVICES else ""
        raise InvalidRequestError(
            f"{counted(most)} cannot show what a gate asks: it takes {least}, as each device is "
            "one observation",
            remedy=f"leave the gates out, or choose more devices{more}",
        )
    if selectors(stages) and not request.control_percent:
        raise InvalidRequestError(
            "devices that a stage chooses are compared with each other, and there is no control "
            "group to compare them with",
            remedy="leave out --control 0, the gates, or the stages that choose devices",
        )
    reached = targets_of(stages, len(devices), len(devices))
    enough = [stage.is_enough(number) for stage, number in zip(stages, reached, strict=True)]
    if not enough[-1]:
        raise InvalidRequestError(
            f"gates compare devices of one profile, and fewer than {LEAST_DEVICES} on a side have "
            "others like them",
            remedy="leave the gates out, or choose more devices of one profile",
        )
    for number in sorted(own):
        if not enough[number - 1]:
            raise InvalidRequestError(
                f"stage {number} has gates of its own and would not wait for them: it reaches "
                f"fewer than {LEAST_DEVICES} devices that can be compared",
                remedy="give them to a later stage",
            )


def check_older(request: RolloutRequest, *, is_first: bool) -> None:
    """Refuse gates where there is nothing to compare with.

    Args:
        request: The rollout.
        is_first: Whether no device has another release of the model.

    Raises:
        InvalidRequestError: There are gates, and it is.
    """
    if is_first and (request.gates or any(stage.gates for stage in request.stages)):
        raise InvalidRequestError(
            "gates compare a release with the one that devices have, and no device has another one"
            " of this model",
            remedy="leave the gates out of the first rollout of a model",
        )


def start_rate(rate: Rate | None) -> StartRate | None:
    """Return the rate of a request.

    Args:
        rate: As it was asked for.
    """
    if rate is None:
        return None
    return StartRate(
        per_minute=rate.per_minute,
        factor=rate.factor or 1.0,
        after=rate.after,
        max_per_minute=rate.max_per_minute,
    )


def shown_rate(rate: StartRate | None) -> Rate | None:
    """Return a rate as the API shows it."""
    if rate is None:
        return None
    return Rate(
        per_minute=rate.per_minute,
        factor=rate.factor if rate.factor > 1.0 else None,
        after=rate.after,
        max_per_minute=rate.max_per_minute,
    )
