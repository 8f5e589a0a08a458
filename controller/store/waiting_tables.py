"""The table of devices that wait to be let in."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, String
from sqlalchemy.orm import Mapped, mapped_column

from controller.domain.acceptance import MAX_SERIAL_CHARS
from controller.domain.states import WaitingState
from controller.store.tables import MAX_CODE_CHARS, NAME_CHARS, Base, one_of


class WaitingDeviceRow(Base):
    """A device that waits, and what it said of itself when it asked first."""

    __tablename__ = "waiting_device"
    __table_args__ = (one_of("state", WaitingState),)

    id: Mapped[str] = mapped_column(String(NAME_CHARS), primary_key=True)
    """The identifier that it asks for."""

    state: Mapped[str] = mapped_column(String(16))
    public_key: Mapped[str] = mapped_column(String(64))
    """What the operator's decision is about: another key is another device."""

    serial: Mapped[str] = mapped_column(String(MAX_SERIAL_CHARS))
    """Empty if it says none."""

    profile_name: Mapped[str] = mapped_column(String(NAME_CHARS))
    architecture: Mapped[str] = mapped_column(String(16))
    agent_version: Mapped[str] = mapped_column(String(MAX_CODE_CHARS))
    labels: Mapped[dict[str, Any]]
    """Those that it gets: its own and its token's."""

    token: Mapped[str] = mapped_column(String(NAME_CHARS))
    """The account of the token with which it asked."""

    refused: Mapped[list[Any] | None] = mapped_column(JSON(none_as_null=True))
    """Who else an operator refused under this identifier: keys with their tokens, the last ones."""

    asked_at_s: Mapped[float]
    last_asked_at_s: Mapped[float]
