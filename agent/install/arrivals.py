"""How many bytes of packages have come over the network since an install began.

Rules:
- What comes belongs to the install that has the turn; each model has counts of its own.
- All counts that came for a package: deltas, repeated and useless pieces, and the headers of HTTP.
  The headers of TCP, TLS and MQTT are below what is seen here.
- What comes while nothing is installed belongs to no install.
"""

from __future__ import annotations

import threading


class Arrivals:
    """The counts of one install of each model; any thread may count."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_model: dict[str, dict[str, int]] = {}
        self._model = ""

    def begin(self, model: str) -> None:
        """Forget what came for a model: another install of it begins."""
        with self._lock:
            self._by_model[model] = {}

    def count_for(self, model: str) -> None:
        """Count what comes from now on for a model."""
        with self._lock:
            self._model = model

    def came(self, size_bytes: int, source: str) -> None:
        """Count what came, and which way (`wire.progress`)."""
        with self._lock:
            counts = self._by_model.setdefault(self._model, {})
            counts[source] = counts.get(source, 0) + size_bytes

    def by_source(self, model: str) -> dict[str, int]:
        """Return the bytes of each source that has brought any for a model."""
        with self._lock:
            return dict(self._by_model.get(model, {}))
