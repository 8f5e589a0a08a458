"""What controls a rollout, as options of `fleet rollout create` and as keys of its file."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Final

import msgspec
import typer

from controller.domain.rollout_view import OnHalt
from controller.rollout_control_schemas import MAX_COUNT, MAX_PRIORITY, FailureSums, ShownLimits
from wire.durations import format_duration
from wire.windows import MAX_WINDOWS

Limit = Annotated[int, msgspec.Meta(ge=0, le=MAX_COUNT)]
Text = Annotated[str, msgspec.Meta(min_length=1)]

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


class ControlKeys(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The keys of the file."""

    max_refused: (
        Annotated[
            Limit, msgspec.Meta(description="More devices that refuse than this halt the rollout.")
        ]
        | msgspec.UnsetType
    ) = msgspec.UNSET
    max_timed_out: (
        Annotated[
            Limit,
            msgspec.Meta(description="More devices that are silent or lost than this halt it."),
        ]
        | msgspec.UnsetType
    ) = msgspec.UNSET
    worst_case: Annotated[
        bool,
        msgspec.Meta(
            description="Start devices only while max_failure_percent is kept even if all without "
            "an outcome fail."
        ),
    ] = False
    on_halt: Annotated[
        OnHalt,
        msgspec.Meta(description="When a rule halts it, devices keep the release, or revert."),
    ] = "keep"
    supersede: Annotated[
        bool,
        msgspec.Meta(description="Take devices that have not started out of older rollouts."),
    ] = False
    priority: Annotated[
        int,
        msgspec.Meta(
            ge=0, le=MAX_PRIORITY, description="One of a higher priority supersedes unasked."
        ),
    ] = 0
    windows: Annotated[
        list[Text],
        msgspec.Meta(
            max_length=MAX_WINDOWS,
            description="Hours of each device's local time in which it activates the release, such "
            "as 22:00-05:00 or mon-fri 22:00-05:00.",
        ),
    ] = msgspec.field(default_factory=list)


KEYS: Final = ControlKeys.__struct_fields__
LIMITS: Final = {
    "max_refused": f"a whole number, 0 to {MAX_COUNT}",
    "max_timed_out": f"a whole number, 0 to {MAX_COUNT}",
    "on_halt": '"keep" or "revert"',
    "priority": f"a whole number, 0 to {MAX_PRIORITY}",
    "windows": f"at most {MAX_WINDOWS} windows that open, such as 22:00-05:00",
}
"""What keys may be whose kind does not tell."""


def control_of(keys: ControlKeys) -> dict[str, Any]:
    """Return the fields of a request that keys of the file give."""
    values = {key: getattr(keys, key) for key in KEYS}
    return {key: value for key, value in values.items() if value is not msgspec.UNSET}


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
