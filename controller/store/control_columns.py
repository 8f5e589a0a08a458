"""What else the operator may ask of a rollout: columns of its row, beside those in `tables`."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, Boolean, Integer, String, false
from sqlalchemy.orm import Mapped, mapped_column

ON_HALT_CHARS = 16
ROLLOUT_CHARS = 64


class ControlColumns:
    """Limits, priority and windows of a rollout."""

    max_refused: Mapped[int | None] = mapped_column(Integer)
    """More devices than this that refused halt it; None if they count as failed."""

    max_timed_out: Mapped[int | None] = mapped_column(Integer)
    """The same of devices that were silent or lost."""

    worst_case: Mapped[bool] = mapped_column(Boolean, server_default=false())
    """Whether a device starts only if the share of failed devices is kept at worst, too."""

    on_halt: Mapped[str] = mapped_column(String(ON_HALT_CHARS), server_default="keep")
    """What becomes of devices that have the release when a rule halts the rollout."""

    is_way_back: Mapped[bool] = mapped_column(Boolean, server_default=false())
    """Whether it brings devices back to what they had, as fast as it can: it does not keep the pace
    of the rollout that it undoes, and its stages do not wait for devices that are offline."""

    gate_ends_left: Mapped[int] = mapped_column(Integer, server_default="0")
    """How many looks at ends of soaks may still take the part that is for such looks."""

    control_percent: Mapped[float] = mapped_column(server_default="0")
    """What part of each profile keeps the old release, to compare the others with."""

    priority: Mapped[int] = mapped_column(Integer, server_default="0")
    superseded_by: Mapped[str | None] = mapped_column(String(ROLLOUT_CHARS))
    """The rollout that took its devices that had not started."""

    awaited_by: Mapped[str | None] = mapped_column(String(ROLLOUT_CHARS))
    """The rollout that takes its devices in when it has ended."""

    windows: Mapped[list[Any] | None] = mapped_column(JSON(none_as_null=True))
    """The hours of the devices' local time in which they activate the release; None for all."""
