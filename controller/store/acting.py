"""Who asked for what runs now, so that the database can note it with what it changes.

The API says it at the start of a request; the thread that answers the request inherits it. Outside
of a request nobody acts: what the controller does by itself is no business of the audit log.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

from controller.domain.api_tokens import without_tokens
from controller.domain.audit_chain import (
    MAX_ACTION_CHARS,
    MAX_ACTOR_CHARS,
    MAX_ROLE_CHARS,
    MAX_SUBJECT_CHARS,
)
from controller.domain.device_text import clean


@dataclass(slots=True, kw_only=True)
class Act:
    """A request that changes something, until its answer."""

    at_ms: int
    actor: str
    role: str
    action: str
    subject: str
    is_noted: bool = False
    """Whether the audit log has a row of it that was committed."""

    def __post_init__(self) -> None:
        self.actor = clean(self.actor, MAX_ACTOR_CHARS)
        self.role = clean(self.role, MAX_ROLE_CHARS)
        self.action = clean(self.action, MAX_ACTION_CHARS)
        self.subject = clean(without_tokens(self.subject), MAX_SUBJECT_CHARS)


_NOW: Final[ContextVar[Act | None]] = ContextVar("act", default=None)


@contextmanager
def acting(act: Act) -> Iterator[None]:
    """Say for the `with` block that what it does is done for a request.

    Yields:
        Nothing.
    """
    before = _NOW.set(act)
    try:
        yield
    finally:
        _NOW.reset(before)


def current() -> Act | None:
    """Return the request that is answered now; None outside of one."""
    return _NOW.get()


def actor() -> str:
    """Return the name of the API token of the request that is answered now; empty without one."""
    act = _NOW.get()
    return "" if act is None else act.actor


def about(subject: str) -> None:
    """Say what a request has made, whose name its path could not hold."""
    act = _NOW.get()
    if act is not None:
        act.subject = clean(f"{act.subject} {subject}".strip(), MAX_SUBJECT_CHARS)
