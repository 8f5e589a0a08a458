"""What controls a rollout, as keys of its file."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

from controller.domain.rollout_view import OnHalt
from controller.rollout_control_schemas import MAX_COUNT, MAX_PRIORITY
from wire.windows import MAX_WINDOWS

Limit = Annotated[int, msgspec.Meta(ge=0, le=MAX_COUNT)]
Text = Annotated[str, msgspec.Meta(min_length=1)]


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
