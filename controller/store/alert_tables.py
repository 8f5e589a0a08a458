"""The tables of alerts: rules, present states, history, and what webhooks are still to be sent."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, CheckConstraint, ForeignKey, Index, Integer, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from controller.domain.alert_groups import MAX_GROUP_CHARS
from controller.domain.alert_posts import ID_CHARS, DeliveryState
from controller.store.tables import MAX_DETAIL_CHARS, NAME_CHARS, Base
from telemetry.server.alerts.states import Phase

_PHASES = ", ".join(f"'{phase}'" for phase in Phase)
_DELIVERY_STATES = ", ".join(f"'{state}'" for state in DeliveryState)
_Number = BigInteger().with_variant(Integer, "sqlite")


class AlertRuleRow(Base):
    """A rule, as the operator set it."""

    __tablename__ = "alert_rule"

    name: Mapped[str] = mapped_column(String(NAME_CHARS), primary_key=True)
    position: Mapped[int] = mapped_column(Integer)
    """Its place in the file."""

    spec: Mapped[dict[str, Any]]
    changed_at_s: Mapped[float]


class AlertRow(Base):
    """A group of a rule that is not inactive, or whose acknowledgement lasts."""

    __tablename__ = "alert"
    __table_args__ = (
        CheckConstraint(f"phase IN ({_PHASES})", name="phase"),
        Index(None, "phase", "since_s"),
    )

    rule: Mapped[str] = mapped_column(String(NAME_CHARS), primary_key=True)
    """No foreign key: the rule that every fleet has is in no table."""

    group_text: Mapped[str] = mapped_column(String(MAX_GROUP_CHARS), primary_key=True)
    labels: Mapped[dict[str, Any]]
    """What the group stands for, by name."""

    phase: Mapped[str] = mapped_column(String(16))
    since_s: Mapped[float]
    value: Mapped[float | None]
    held_s: Mapped[float] = mapped_column(server_default="0")
    missing_s: Mapped[float] = mapped_column(server_default="0")
    told_at_s: Mapped[float | None]
    """When the webhooks were last given that it fires."""

    incident: Mapped[str] = mapped_column(String(ID_CHARS), server_default="")
    """By which receivers know the alert, from its last firing to the end of that; empty before the
    first."""

    acked_at_s: Mapped[float | None]
    acked_until_s: Mapped[float | None]
    """Null: until it is resolved."""

    acked_by: Mapped[str] = mapped_column(String(NAME_CHARS), server_default="")
    comment: Mapped[str] = mapped_column(String(MAX_DETAIL_CHARS), server_default="")


class AlertHistoryRow(Base):
    """Something that happened to an alert or a rule."""

    __tablename__ = "alert_history"
    __table_args__ = (Index(None, "rule", "id"), Index(None, "at_s"))

    id: Mapped[int] = mapped_column(_Number, primary_key=True, autoincrement=True)
    at_s: Mapped[float]
    rule: Mapped[str] = mapped_column(String(NAME_CHARS))
    group_text: Mapped[str] = mapped_column(String(MAX_GROUP_CHARS))
    what: Mapped[str] = mapped_column(String(16))
    value: Mapped[float | None]
    actor: Mapped[str] = mapped_column(String(NAME_CHARS))
    detail: Mapped[str] = mapped_column(String(MAX_DETAIL_CHARS))


class AlertDeliveryRow(Base):
    """A post to a webhook."""

    __tablename__ = "alert_delivery"
    __table_args__ = (
        CheckConstraint(f"state IN ({_DELIVERY_STATES})", name="state"),
        CheckConstraint("state = 'waiting' OR ended_at_s IS NOT NULL", name="ended"),
        Index(None, "webhook", "state", "next_at_s"),
        Index(None, "ended_at_s"),
    )

    number: Mapped[int] = mapped_column(_Number, primary_key=True, autoincrement=True)
    """The order in which they are sent."""

    id: Mapped[str] = mapped_column(String(NAME_CHARS), unique=True)
    """By which the receiver knows one that comes again."""

    webhook: Mapped[str] = mapped_column(String(NAME_CHARS))
    """Its name in the settings, which have the address."""

    body: Mapped[str] = mapped_column(Text)
    """Byte for byte what is sent; empty when nothing is sent any more."""

    alerts: Mapped[int] = mapped_column(Integer)
    state: Mapped[str] = mapped_column(String(16))
    tries: Mapped[int] = mapped_column(Integer)
    created_at_s: Mapped[float]
    next_at_s: Mapped[float]
    ended_at_s: Mapped[float | None]
    fault: Mapped[str] = mapped_column(String(MAX_DETAIL_CHARS))


class AlertDeliveryGroupRow(Base):
    """A group of a rule of which a post tells that waits."""

    __tablename__ = "alert_delivery_group"
    __table_args__ = (Index(None, "number"),)

    webhook: Mapped[str] = mapped_column(String(NAME_CHARS), primary_key=True)
    group_key: Mapped[str] = mapped_column(String(ID_CHARS), primary_key=True)
    """`controller.domain.alert_posts.group_key`."""

    number: Mapped[int] = mapped_column(ForeignKey("alert_delivery.number"), primary_key=True)
    """Of the post."""
