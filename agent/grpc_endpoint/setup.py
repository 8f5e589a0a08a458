"""What the supervisor tells the gRPC process at its start, and what that process answers.

Pure: each is one line of JSON on a pipe, so that no secret stands on a command line.
"""

from __future__ import annotations

from typing import Final

import msgspec

STOP_SIGNAL: Final = "SIGUSR1"
"""Asks the process to end. A service manager sends SIGTERM to all of the agent's processes; when
this one ends is for the supervisor to say."""


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """What the process needs to know."""

    address: str
    """Where it listens: `host:port`, or `unix:` and a path."""

    endpoint_path: str
    """The private socket of the endpoint, which answers all requests."""

    token: str | None
    """What clients show; None if they need no token."""

    cert_file: str | None
    key_file: str | None
    client_ca_file: str | None
    """PEM files for TLS; None without."""

    max_message_bytes: int
    calls: int
    """Calls at the same time."""


class Told(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of its start."""

    address: str = ""
    """Where it listens; empty if it does not."""

    fault: str = ""
    """Why it does not."""

    remedy: str = ""
    is_final: bool = False
    """Whether another start would fail just so."""
