"""How many bytes of packages have come over the network since an install began.

Rules:
- All counts that came for a package: deltas, repeated and useless pieces, and the headers of HTTP.
  The headers of TCP, TLS and MQTT are below what is seen here.
- What comes while nothing is installed belongs to no install.
"""

from __future__ import annotations

import threading


class Arrivals:
    """The counts of one install; any thread may count."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_source: dict[str, int] = {}

    def begin(self) -> None:
        """Forget all: another install begins."""
        with self._lock:
            self._by_source = {}

    def came(self, size_bytes: int, source: str) -> None:
        """Count what came, and which way (`wire.progress`)."""
        with self._lock:
            self._by_source[source] = self._by_source.get(source, 0) + size_bytes

    @property
    def by_source(self) -> dict[str, int]:
        """The bytes of each source that has brought any."""
        with self._lock:
            return dict(self._by_source)
