"""Tells tokens from inventions, at the cost of one read of the database a second at most.

Who floods the controller invents a token for each request. A bound on how many are looked up would
hold back the device that has one; what is not valid is no end of names, so none is remembered.
"""

from __future__ import annotations

from typing import Final

from controller.store import tokens
from controller.store.database import Database
from wire.clock import Clock
from wire.codec import sha256_hex

READ_EVERY_S: Final = 1.0
"""So long a new token may be unknown here. A device that gets no answer asks again."""


class ValidTokens:
    """The digests of the tokens that have not expired. For one thread.

    Args:
        database: The control state.
        clock: Wall time and durations.
    """

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._digests: frozenset[str] = frozenset()
        self._read_at_s = float("-inf")

    def has(self, token: str) -> bool:
        """Tell whether a token was valid a moment ago, even if it is used up.

        Args:
            token: As a device sends it; may be empty.

        Raises:
            DatabaseError: The database does not answer.
        """
        now_s = self._clock.monotonic_s()
        if now_s - self._read_at_s >= READ_EVERY_S:
            with self._database.reading() as transaction:
                self._digests = tokens.valid(transaction, now_s=self._clock.now_s())
            self._read_at_s = now_s
        return sha256_hex(token.encode()) in self._digests
