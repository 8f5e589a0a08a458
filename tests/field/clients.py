"""Applications on the devices: they ask without end and check every answer.

Rules:
- An answer is right if its release and variant are ones that were signed and good, and if its
  numbers are theirs.
- A request that was under way when its agent was killed, or that came before the agent serves
  again, is cut, not lost. A request is lost if its agent lived all the time and gave no answer.
- A connection that the server closed while it was idle is opened again before a request. What
  happens after the first byte was sent counts.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import select
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tests.field.releases import Releases
from tests.simulators.rig import body_of

ANSWER_S = 60.0
"""Longest wait for an answer: longer than any time for which an agent lets a request wait."""

REST_S = 0.3
BAD_ANSWERS: Final = ("wrong", "unverified", "lost")


@dataclass
class Tally:
    """What all clients saw."""

    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    """The first of what must not happen, for the report."""

    lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, kind: str, fault: str = "") -> None:
        """Count one request.

        Args:
            kind: `right`, `wrong`, `unverified`, `refused`, `cut` or `lost`.
            fault: What happened, if it must not happen.
        """
        with self.lock:
            self.counts[kind] += 1
            if fault and len(self.faults) < 20:
                self.faults.append(fault)


class Application:
    """A client of one device.

    Args:
        device: Name of the device.
        port: Of its endpoint.
        releases: Know the right answers.
        tally: Counts.
        lives_since_s: Returns since when, on the monotonic clock, the agent has served; None while
            it does not run, or does not serve yet.
    """

    def __init__(
        self,
        device: str,
        port: int,
        releases: Releases,
        tally: Tally,
        lives_since_s: Callable[[], float | None],
    ) -> None:
        self._device = device
        self._port = port
        self._releases = releases
        self._tally = tally
        self._lives_since_s = lives_since_s
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Begin to ask."""
        self._thread.start()

    def stop(self) -> bool:
        """Stop asking; return whether it asked until now."""
        asked = self._thread.is_alive()
        self._stopping.set()
        self._thread.join()
        return asked

    def _run(self) -> None:
        client = http.client.HTTPConnection("127.0.0.1", self._port, timeout=ANSWER_S)
        while not self._stopping.wait(REST_S):
            if self._lives_since_s() is None:
                client.close()
                continue
            self._ask(client)
        client.close()

    def _ask(self, client: http.client.HTTPConnection) -> None:
        begun_s = time.monotonic()
        try:
            kind, said = judged(client, self._releases.answers)
            self._tally.count(kind, f"{self._device}: {said}" if kind in BAD_ANSWERS else "")
        except (OSError, http.client.HTTPException) as exc:
            client.close()
            since_s = self._lives_since_s()
            if since_s is None or since_s > begun_s:
                self._tally.count("cut")
            else:
                waited_s = time.monotonic() - begun_s
                self._tally.count("lost", f"{self._device}: {exc!r} after {waited_s:.1f} s")


def judged(
    client: http.client.HTTPConnection, answers: Mapping[tuple[str, str], NDArray[np.float32]]
) -> tuple[str, str]:
    """Ask once and judge the answer.

    Args:
        client: A connection to an endpoint.
        answers: The right answer to `INPUT` by release and variant.

    Returns:
        `right`, `refused`, `wrong` or `unverified`, and the release or what came.

    Raises:
        OSError: No answer came.
        http.client.HTTPException: What came is not HTTP.
    """
    if client.sock is not None and select.select([client.sock], [], [], 0)[0]:
        client.close()
    body, headers = body_of()
    client.request("POST", "/v2/models/digits/infer", body=body, headers=headers)
    with client.getresponse() as response:
        content = response.read()
    said = f"{response.status} {content[:200]!r}"
    if response.status == 503 and response.headers.get("Retry-After"):
        return "refused", said
    if response.status != 200:
        return "wrong", said
    try:
        length = int(response.headers["Inference-Header-Content-Length"])
        parameters = json.loads(content[:length])["parameters"]
        release = parameters["release"]
        right = answers[release, parameters["variant"]]
        numbers = np.frombuffer(content[length:], "<f4")
    except (KeyError, TypeError, ValueError):
        return "unverified", said
    if numbers.shape != right.shape or not np.allclose(numbers, right, rtol=1e-5):
        return "unverified", said
    return "right", release


def answers(port: int) -> bool:
    """Return whether an endpoint answers that it is ready."""
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=5.0)
    with contextlib.closing(client), contextlib.suppress(OSError, http.client.HTTPException):
        client.request("GET", "/v2/health/ready")
        with client.getresponse() as response:
            return response.status == 200
    return False
