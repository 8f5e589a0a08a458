"""The controller's log: one JSON object in each line, on standard error.

Rules:
- No code hands a secret to a logger: no message contains a token or a password.
- Text from a device is escaped, so that it cannot begin a line of its own.
"""

from __future__ import annotations

import json
import logging
import sys


class JsonFormatter(logging.Formatter):
    """Writes a record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line: dict[str, object] = {
            "at_s": round(record.created, 3),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=True)


def configure_logging(level: int = logging.INFO) -> None:
    """Send every logger of this process to standard error as JSON lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for name in ("alembic", "tuf", "uvicorn", "urllib3"):
        logging.getLogger(name).setLevel(logging.WARNING)
    # It has a line for each attempt; `controller.exporting.worker` says once what is wrong.
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
