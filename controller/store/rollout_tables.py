"""The tables of rollouts, their stages and log, and the part of each device in them."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    CheckConstraint,
    ForeignKey,
    Index,
    Integer,
    String,
    false,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column

from controller.domain.states import DeploymentState, RolloutState
from controller.store.control_columns import ControlColumns
from controller.store.device_tables import DeviceRow
from controller.store.release_tables import ReleaseRow
from controller.store.tables import MAX_CODE_CHARS, MAX_DETAIL_CHARS, NAME_CHARS, Base, one_of


class RolloutRow(ControlColumns, Base):
    """A rollout, what the operator set, and where it is."""

    __tablename__ = "rollout"
    __table_args__ = (
        one_of("state", RolloutState),
        CheckConstraint("stage >= 1 AND approved_stage >= 1", name="stage"),
        CheckConstraint("max_in_flight >= 1 AND max_failures >= 0", name="limits"),
        Index(None, "state"),
    )

    id: Mapped[str] = mapped_column(String(NAME_CHARS), primary_key=True)
    release: Mapped[str] = mapped_column(ForeignKey(ReleaseRow.digest))
    model: Mapped[str] = mapped_column(String(NAME_CHARS), server_default="")
    """The name of the release. All releases that the rollout brings are of this model."""

    origin: Mapped[str | None] = mapped_column(
        ForeignKey("rollout.id", name="fk_rollout_rollback_of")
    )
    """Set for a rollback and for another try: the devices are those of that rollout, and no others
    join."""

    is_retry: Mapped[bool] = mapped_column(Boolean, server_default=false())
    """Whether it tries the release of its origin again, and does not roll it back."""

    selector: Mapped[str] = mapped_column(String(1024))
    spread: Mapped[str] = mapped_column(String(NAME_CHARS), server_default="")
    """The label over which the order of starting is spread."""

    state: Mapped[str] = mapped_column(String(16))
    reason: Mapped[str] = mapped_column(String(MAX_DETAIL_CHARS))
    """The reason of the last decision; a decision is logged when it or its reason changes."""

    max_in_flight: Mapped[int] = mapped_column(Integer)
    soak_s: Mapped[float]
    device_deadline_s: Mapped[float]
    offline_limit_s: Mapped[float] = mapped_column(server_default="86400")
    max_failures: Mapped[int] = mapped_column(Integer)
    max_failure_percent: Mapped[float | None]
    min_finished: Mapped[int] = mapped_column(Integer)
    approval: Mapped[bool] = mapped_column(Boolean)
    initial_devices: Mapped[int] = mapped_column(Integer)
    stage: Mapped[int] = mapped_column(Integer)
    approved_stage: Mapped[int] = mapped_column(Integer)
    ran_s: Mapped[float] = mapped_column(server_default="0")
    """The rollout's own clock: how long a controller has watched it. Its limits are measured with
    this clock, so that no time passes for devices while no controller hears them."""

    stage_complete_at_s: Mapped[float | None]
    """By the rollout's own clock."""

    control_released: Mapped[bool] = mapped_column(Boolean, server_default=false())
    """Whether the control group gets the release, too, from now on."""

    gates_passed_by_hand: Mapped[int] = mapped_column(Integer, server_default="0")
    """The last stage that the operator let end despite gates that held."""

    created_at_s: Mapped[float]
    created_by: Mapped[str] = mapped_column(String(NAME_CHARS), server_default="")
    """The API token that made it; empty where that was not noted yet."""

    finished_at_s: Mapped[float | None]


class RolloutStageRow(Base):
    """A stage of a rollout."""

    __tablename__ = "rollout_stage"
    __table_args__ = (
        CheckConstraint("(count IS NULL) <> (percent IS NULL)", name="count_or_percent"),
    )

    rollout: Mapped[str] = mapped_column(ForeignKey("rollout.id"), primary_key=True)
    number: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    count: Mapped[int | None] = mapped_column(Integer)
    percent: Mapped[float | None]
    selector: Mapped[str] = mapped_column(String(1024), server_default="")
    """By which it chooses its devices; `count` is how many of them there were."""

    soak_s: Mapped[float | None]
    """Its own; None for that of the rollout."""

    approval: Mapped[bool | None] = mapped_column(Boolean)
    asks_gates: Mapped[bool | None] = mapped_column(Boolean)
    """Whether it reaches enough devices that can be compared, where stages choose some."""

    shadow: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    """What its shadow must have shown before it begins, as `ShadowNeed`; None for nothing."""


class DeploymentRow(Base):
    """One device's part in a rollout."""

    __tablename__ = "deployment"
    __table_args__ = (
        one_of("state", DeploymentState),
        CheckConstraint(
            "state IN ('pending', 'cancelled') OR (revision IS NOT NULL"
            " AND started_at_s IS NOT NULL)",
            name="started",
        ),
        Index(
            "uq_deployment_unfinished",
            "device",
            "model",
            unique=True,
            sqlite_where=text("state IN ('pending', 'assigned', 'waiting')"),
            postgresql_where=text("state IN ('pending', 'assigned', 'waiting')"),
        ),
        Index(None, "rollout", "state", "position", "device"),
        Index(
            "ix_deployment_control",
            "rollout",
            "state",
            sqlite_where=text("is_control IS 1"),
            postgresql_where=text("is_control IS true"),
        ),
        Index(None, "device", "revision"),
    )

    rollout: Mapped[str] = mapped_column(ForeignKey("rollout.id"), primary_key=True)
    device: Mapped[str] = mapped_column(ForeignKey(DeviceRow.id), primary_key=True)
    model: Mapped[str] = mapped_column(String(NAME_CHARS), server_default="")
    """That of the rollout."""

    state: Mapped[str] = mapped_column(String(16))
    position: Mapped[int] = mapped_column(Integer)
    """Order of starting: a fixed shuffle, so that the first stage is a fair sample."""

    stage: Mapped[int] = mapped_column(Integer)
    """The stage in which it was started; 0 before."""

    is_control: Mapped[bool] = mapped_column(Boolean, server_default=false())
    """Whether it keeps the old release until the rollout's gates have passed in the last stage."""

    revision: Mapped[int | None] = mapped_column(BigInteger)
    """The revision of the desired state that started it."""

    previous: Mapped[str | None] = mapped_column(ForeignKey(ReleaseRow.digest))
    """The release that the device had before and can go back to."""

    is_first: Mapped[bool] = mapped_column(Boolean, server_default=false())
    """Whether the device had nothing of the model before: it goes back to nothing."""

    release: Mapped[str | None] = mapped_column(ForeignKey(ReleaseRow.digest))
    """The release that the device is brought to, if it is not the rollout's."""

    acknowledged: Mapped[bool] = mapped_column(Boolean, server_default=false())
    """Whether the operator went on despite this failure."""

    clock_s: Mapped[float] = mapped_column(server_default="0")
    """When it was started, by the rollout's own clock."""

    away_s: Mapped[float] = mapped_column(server_default="0")
    """How long it was offline since, without the time that still goes on."""

    away_from_s: Mapped[float | None]
    """Since when it is offline, by the rollout's own clock; None while it is online."""

    phase: Mapped[str] = mapped_column(String(16))
    done_bytes: Mapped[int] = mapped_column(BigInteger)
    total_bytes: Mapped[int] = mapped_column(BigInteger)
    error_code: Mapped[str] = mapped_column(String(MAX_CODE_CHARS))
    detail: Mapped[str] = mapped_column(String(MAX_DETAIL_CHARS))
    started_at_s: Mapped[float | None]
    reported_at_s: Mapped[float | None]
    finished_at_s: Mapped[float | None]


class RolloutEventRow(Base):
    """A decision about a rollout, and its reason."""

    __tablename__ = "rollout_event"
    __table_args__ = (Index(None, "rollout"),)

    id: Mapped[int] = mapped_column(
        BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True
    )
    rollout: Mapped[str] = mapped_column(ForeignKey("rollout.id"))
    at_s: Mapped[float]
    action: Mapped[str] = mapped_column(String(32))
    reason: Mapped[str] = mapped_column(String(MAX_DETAIL_CHARS))
    actor: Mapped[str] = mapped_column(String(NAME_CHARS), server_default="")
    """The API token of the request in which it was made; empty for the controller's own."""
