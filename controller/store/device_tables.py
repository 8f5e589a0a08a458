"""The tables of devices and their labels."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, BigInteger, Boolean, ForeignKey, Index, Integer, String, false, true
from sqlalchemy.orm import Mapped, mapped_column, relationship

from controller.domain.peer_urls import MAX_URL_CHARS
from controller.domain.states import DeviceState
from controller.store.tables import ERROR_CHARS, NAME_CHARS, Base, one_of


class DeviceRow(Base):
    """A device and what it last reported."""

    __tablename__ = "device"
    __table_args__ = (
        one_of("state", DeviceState),
        Index(None, "online", "last_seen_at_s"),
        Index(None, "id", "online"),  # a row is wide: whether a device is online is asked often
    )

    id: Mapped[str] = mapped_column(String(NAME_CHARS), primary_key=True)
    state: Mapped[str] = mapped_column(String(16))
    public_key: Mapped[str] = mapped_column(String(64))
    profile_name: Mapped[str] = mapped_column(String(NAME_CHARS))
    architecture: Mapped[str] = mapped_column(String(16))
    profile: Mapped[dict[str, Any]]
    runtimes: Mapped[list[str] | None] = mapped_column(JSON(none_as_null=True))
    """Those of the profile that it has; null where it has all of them, or did not say."""

    agent_version: Mapped[str] = mapped_column(String(64))
    boot_id: Mapped[str] = mapped_column(String(64))
    online: Mapped[bool] = mapped_column(Boolean)
    greeted: Mapped[bool] = mapped_column(Boolean, server_default=false())
    """Whether it has said what it is and has since it enrolled. A restore does not change it."""

    may_enrol_again: Mapped[bool] = mapped_column(Boolean, server_default=false())
    """Set by the operator for a decommissioned device; the next enrolment takes it back."""

    certificate_ends_at_s: Mapped[float | None]
    """When the last certificate that it got ends; null if it has none."""

    lent: Mapped[bool] = mapped_column(Boolean, server_default=false())
    """Whether the operator lends it for measurements."""

    peer_url: Mapped[str | None] = mapped_column(String(MAX_URL_CHARS))
    """Where it serves the devices of its site, as it said when it connected last; null if it serves
    nobody, or elsewhere than it may."""

    trust_file: Mapped[bool | None] = mapped_column(Boolean)
    """Whether it trusts keys in a trust file, and not the fleet's metadata, as it said when it
    connected last; null until then."""

    report_sequence: Mapped[int] = mapped_column(BigInteger, server_default="0")
    """Number of the last report of this boot; a report with a lower one comes late."""

    allows_shadows: Mapped[bool] = mapped_column(Boolean, server_default=true())
    """False if it said when it connected last that it runs none."""

    desired_form: Mapped[int] = mapped_column(Integer, server_default="1")
    """The newest form of a desired state that it reads (`wire.desired`), as it said last."""

    reported_revision: Mapped[int] = mapped_column(BigInteger)
    """The newest desired state that it has accepted."""

    last_error: Mapped[str] = mapped_column(String(ERROR_CHARS))
    """What it said last that concerns no single model, such as why it refuses a desired state."""

    enrolled_at_s: Mapped[float]
    last_seen_at_s: Mapped[float | None]
    expected_from_s: Mapped[float | None]
    """When it was let in again after a quarantine, in which nothing could be heard of it; null if
    something has been since."""

    labels: Mapped[list[DeviceLabelRow]] = relationship(
        cascade="all, delete-orphan", order_by="DeviceLabelRow.key"
    )


class DeviceLabelRow(Base):
    """A label of a device."""

    __tablename__ = "device_label"
    __table_args__ = (Index(None, "key", "value"),)

    device: Mapped[str] = mapped_column(ForeignKey("device.id"), primary_key=True)
    key: Mapped[str] = mapped_column(String(NAME_CHARS), primary_key=True)
    value: Mapped[str] = mapped_column(String(128))
