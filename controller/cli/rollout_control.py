"""What controls a rollout, as options of `fleet rollout create`."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from controller.rollout_control_schemas import FailureSums, ShownLimits
from wire.durations import format_duration

MaxRefusedOption = Annotated[
    int | None,
    typer.Option(
        help="More devices than this that refuse the release halt the rollout. Without it they "
        "count as failed.",
        metavar="N",
    ),
]
MaxTimedOutOption = Annotated[
    int | None,
    typer.Option(
        help="More devices than this that are silent or lost halt the rollout. Without it they "
        "count as failed.",
        metavar="N",
    ),
]
WorstCaseOption = Annotated[
    bool,
    typer.Option(
        "--worst-case/--no-worst-case",
        help="Start devices only while the share of --max-failure-percent is kept even if all "
        "that have no outcome yet fail; one at a time always may.",
    ),
]


class OnHaltWord(StrEnum):
    """What `--on-halt` takes."""

    KEEP = "keep"
    REVERT = "revert"


OnHaltOption = Annotated[
    OnHaltWord,
    typer.Option(
        help="When a rule halts the rollout, devices keep the release, or a rollback begins.",
        metavar="keep|revert",
    ),
]
SupersedeOption = Annotated[
    bool,
    typer.Option(
        "--supersede/--no-supersede",
        help="Take devices that have not started in an older rollout of the model out of it.",
    ),
]
PriorityOption = Annotated[
    int,
    typer.Option(
        help="A rollout of a higher priority supersedes others unasked; one of a lower priority "
        "is refused.",
        metavar="N",
    ),
]
WindowOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Hours of each device's local time in which it activates the release, such as "
        "22:00-05:00 or 'mon-fri 22:00-05:00'; may be repeated. It fetches at once.",
        metavar="WINDOW",
    ),
]


def failures_text(sums: FailureSums) -> str:
    """Return who failed in which way, and what share that is; empty if nobody has."""
    if not (sums.failed or sums.refused or sums.timed_out):
        return ""
    kinds = f"{sums.failed} failed, {sums.refused} refused, {sums.timed_out} timed out"
    return f"{kinds}; certain {sums.certain_percent:.1f} %, at worst {sums.worst_percent:.1f} %"


def limits_text(limits: ShownLimits) -> str:
    """Return what halts a rollout, and how many devices it starts at a time."""
    told = [f"{limits.max_failures} failed"]
    if limits.max_failure_percent is not None:
        worst = ", also at worst" if limits.worst_case else ""
        told.append(f"{limits.max_failure_percent:g} % of {limits.min_finished} finished{worst}")
    if limits.max_refused is not None:
        told.append(f"{limits.max_refused} refused")
    if limits.max_timed_out is not None:
        told.append(f"{limits.max_timed_out} timed out")
    text = f"{', '.join(told)}; then devices {limits.on_halt} it"
    waits = f"deadline {format_duration(limits.device_deadline_s)}"
    waits += f", offline {format_duration(limits.offline_limit_s)}"
    return f"at most {text}; {limits.max_in_flight} in flight, {waits}"
