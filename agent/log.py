"""The agent's log: one JSON object per line on stderr, for the journal.

Rules:
- A line says what was done (`action`) and has further fields; no field is ever a secret.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from typing import TextIO

from wire.clock import Clock


class Log:
    """Writes log lines; usable from any thread.

    Args:
        clock: For the time of each line.
        stream: Where the lines go; None for stderr.
    """

    def __init__(self, clock: Clock, stream: TextIO | None = None) -> None:
        self._clock = clock
        self._stream = stream or sys.stderr
        self._lock = threading.Lock()

    def write(self, action: str, **fields: object) -> None:
        """Write one line.

        Args:
            action: What was done.
            **fields: Further fields; anything that JSON does not know is written as text.
        """
        line = json.dumps(
            {"at_s": round(self._clock.now_s(), 3), "action": action} | fields, default=str
        )
        # What serves must not end because nobody can write down what it does.
        with self._lock, contextlib.suppress(OSError):
            print(line, file=self._stream, flush=True)
