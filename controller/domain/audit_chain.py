r"""The chain of the audit log: the hash of each row is over the row and the hash before it. Pure.

```
hash = SHA-256(hash of the row before + "\n" + canonical JSON of the row)
```

Both hashes are in hexadecimal; before the first row stand 64 zeros. The canonical JSON has sorted
keys and no spaces, and holds every field but the hash.

Rules:
- Whoever changes, adds or takes out a row must write all later hashes anew, and so changes the
  newest one, the head. Who has written down a head finds even that, and a log that was cut off.
- A row holds no body of a request and no secret, and no field is longer than its bound.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Final

from wire.codec import sha256_hex, to_json

START: Final = "0" * 64
"""Stands for the hash before the first row."""

MAX_ACTOR_CHARS: Final = 63
MAX_ROLE_CHARS: Final = 16
MAX_ACTION_CHARS: Final = 100
MAX_SUBJECT_CHARS: Final = 200
MAX_OUTCOME_CHARS: Final = 16

COMMITTED: Final = "committed"
"""The outcome of a row that was committed together with what it tells of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRow:
    """What somebody did, or was refused."""

    sequence: int
    """From 1, without a gap."""

    at_ms: int
    """When the request came: wall time."""

    actor: str
    """The name of the API token."""

    role: str
    action: str
    """Method and path of the route, such as `POST /v1/rollouts/{rollout}/pause`."""

    subject: str
    """What it was done to, such as the identifier of a rollout."""

    outcome: str
    """`committed`, or the HTTP status of the answer."""

    def hash_after(self, before: str) -> str:
        """Return the hash of this row.

        Args:
            before: The hash of the row before it.
        """
        return sha256_hex(before.encode() + b"\n" + to_json(asdict(self)))


class ChainCheck:
    """Checks rows one after the other, from the first.

    Args:
        head: A hash that was written down before; empty if there is none.
    """

    def __init__(self, head: str = "") -> None:
        self._wanted = head
        self._has_wanted = head in {"", START}
        self.count = 0
        self.head = START
        """The hash of the last row that fits."""

    def fault(self, row: AuditRow, shown_hash: str) -> str | None:
        """Take the next row.

        Args:
            row: The row.
            shown_hash: The hash that stands with it.

        Returns:
            What is wrong with it; None if it fits to those before.
        """
        expected = self.count + 1
        if row.sequence < expected:
            return (
                f"row {row.sequence} was added: the next one after row {self.count} is {expected}"
            )
        if row.sequence != expected:
            return f"row {expected} is missing: row {row.sequence} follows row {self.count}"
        if row.hash_after(self.head) != shown_hash:
            return f"row {expected} does not fit to its hash: it or the row before was changed"
        self.count, self.head = expected, shown_hash
        self._has_wanted |= shown_hash == self._wanted
        return None

    def missing_head(self) -> str | None:
        """Return what is wrong at the end of the log; None if it holds the head asked for."""
        if self._has_wanted:
            return None
        return (
            f"no row of {self.count} has the hash {self._wanted}: the log was cut off, or written "
            "anew"
        )
