"""The tables of what devices should run, and of what they say that they run; see `store.tables`."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    CheckConstraint,
    ForeignKey,
    Index,
    String,
    false,
)
from sqlalchemy.orm import Mapped, mapped_column

from controller.store.device_tables import DeviceRow
from controller.store.release_tables import ReleaseRow
from controller.store.rollout_tables import RolloutRow
from controller.store.tables import DIGEST_CHARS, ERROR_CHARS, NAME_CHARS, Base


class DesiredStateRow(Base):
    """What a device should run, as one document; the revision only grows."""

    __tablename__ = "desired_state"
    __table_args__ = (CheckConstraint("revision >= 1", name="revision"),)

    device: Mapped[str] = mapped_column(ForeignKey(DeviceRow.id), primary_key=True)
    revision: Mapped[int] = mapped_column(BigInteger)
    issued_at_s: Mapped[float]


class DesiredModelRow(Base):
    """What a device should run of one model."""

    __tablename__ = "desired_model"
    __table_args__ = (
        CheckConstraint("NOT removed OR release IS NULL", name="removed"),
        Index(None, "policy_generation"),
    )

    device: Mapped[str] = mapped_column(ForeignKey(DeviceRow.id), primary_key=True)
    model: Mapped[str] = mapped_column(String(NAME_CHARS), primary_key=True)
    release: Mapped[str | None] = mapped_column(ForeignKey(ReleaseRow.digest))
    """None if nothing is ordered: what the device has of the model stays."""

    rollout: Mapped[str | None] = mapped_column(ForeignKey(RolloutRow.id))
    release_revision: Mapped[int] = mapped_column(BigInteger, server_default="0")
    """The revision in which the release was given. A later change of a policy or of another model
    raises only the revision of the device, so it does not affect the deployment, which refers to
    this one."""

    removed: Mapped[bool] = mapped_column(Boolean, server_default=false())
    """Whether the device is to have nothing of the model: the desired state does not name it. The
    row stays, so that what the device still reports of it is not taken for something of its own."""

    windows: Mapped[list[Any] | None] = mapped_column(JSON(none_as_null=True))
    """The hours of the device's local time in which it activates the release; None for all."""

    policy_name: Mapped[str | None] = mapped_column(String(NAME_CHARS))
    """Name of the policy that was chosen. It is no foreign key, because it tells what was sent,
    even if that policy has been removed."""

    policy: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    """The policy that is sent, as `wire.policy.PolicySpec`; None for the default one."""

    capture: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    """Which requests it is to capture, as `wire.capture.CaptureRule`; None for none. It is chosen
    with the policy."""

    shadow: Mapped[dict[str, Any] | None] = mapped_column(JSON(none_as_null=True))
    """What runs beside it, as `wire.shadow.ShadowRule`; None for nothing. It is chosen with the
    policy."""

    policy_generation: Mapped[int] = mapped_column(BigInteger, server_default="0")
    """Generation of the policies from which it was chosen; 0 to have it chosen again."""


class DeviceModelRow(Base):
    """What a device last reported of one of its models."""

    __tablename__ = "device_model"

    device: Mapped[str] = mapped_column(ForeignKey(DeviceRow.id), primary_key=True)
    model: Mapped[str] = mapped_column(String(NAME_CHARS), primary_key=True)
    """Empty for what an agent without names runs, if nobody knows that package."""

    revision: Mapped[int] = mapped_column(BigInteger)
    """The newest revision of the model that it has accepted."""

    release: Mapped[str | None] = mapped_column(String(DIGEST_CHARS))
    """Digest of the package that is active."""

    variant: Mapped[str | None] = mapped_column(String(NAME_CHARS))
    phase: Mapped[str] = mapped_column(String(16))
    last_error: Mapped[str] = mapped_column(String(ERROR_CHARS))
