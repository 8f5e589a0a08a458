"""An application on the device: sends digits to the endpoint without pause and counts.

Rules:
- It speaks the Open Inference Protocol with binary tensors over one keep-alive connection.
- Whatever is not a 200 with the right number of outputs is a failed request; none is retried.
- It may say after each answer which digit it was, as an application that learns it later would.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections import Counter
from typing import NamedTuple
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

TIMEOUT_S = 10.0


class Answer(NamedTuple):
    """An answer of the endpoint."""

    digit: int
    variant: str
    """That answered."""

    id: str
    """Of the request, as the endpoint named it; empty where it takes no feedback."""


def infer(connection: http.client.HTTPConnection, model: str, image: NDArray[np.float32]) -> Answer:
    """Send one image and return the answer.

    Args:
        connection: An open connection to the endpoint.
        model: The model's name.
        image: Shape (1, 1, 8, 8), values 0 to 1.

    Returns:
        The answer.

    Raises:
        OSError: No answer, or one that is not a 200.
    """
    tensor = image.tobytes()
    head = json.dumps(
        {
            "inputs": [
                {
                    "name": "input",
                    "datatype": "FP32",
                    "shape": list(image.shape),
                    "parameters": {"binary_data_size": len(tensor)},
                }
            ],
            "outputs": [{"name": "logits", "parameters": {"binary_data": True}}],
        }
    ).encode()
    connection.request(
        "POST",
        f"/v2/models/{model}/infer",
        head + tensor,
        {
            "Content-Type": "application/octet-stream",
            "Inference-Header-Content-Length": str(len(head)),
        },
    )
    response = connection.getresponse()
    body = response.read()
    if response.status != http.client.OK:
        raise OSError(f"{response.status}: {body[:200]!r}")
    length = int(response.headers["Inference-Header-Content-Length"])
    answer = json.loads(body[:length])
    logits = np.frombuffer(body[length:], np.float32)
    return Answer(
        int(logits.argmax()), str(answer["parameters"]["variant"]), str(answer.get("id", ""))
    )


def say(connection: http.client.HTTPConnection, model: str, answer: str, digit: int) -> None:
    """Say which digit an image was.

    Args:
        connection: An open connection to the endpoint.
        model: The model's name.
        answer: The `id` of the answer.
        digit: The right one.

    Raises:
        OSError: It was not taken.
    """
    body = json.dumps({"id": answer, "label": digit}).encode()
    head = {"Content-Type": "application/json"}
    connection.request("POST", f"/v2/models/{model}/feedback", body, head)
    response = connection.getresponse()
    said = response.read()
    if response.status != http.client.OK:
        raise OSError(f"feedback: {response.status}: {said[:200]!r}")


class Client:
    """A thread that sends requests at a steady rate until it is stopped.

    Args:
        url: The endpoint.
        model: The model's name.
        images: Shape (N, 1, 8, 8).
        labels: Shape (N,).
        rate_hz: Requests per second.
        says_what_was_right: Whether it says after each answer which digit it was.
    """

    def __init__(
        self,
        url: str,
        model: str,
        images: NDArray[np.float32],
        labels: NDArray[np.int64],
        *,
        rate_hz: float = 100.0,
        says_what_was_right: bool = False,
    ) -> None:
        self._where = urlsplit(url)
        self._model, self._images, self._labels = model, images, labels
        self._interval_s = 1.0 / rate_hz
        self._says = says_what_was_right
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.sent = 0
        self.right = 0
        self.failures: list[str] = []
        self.variants: Counter[str] = Counter()

    def start(self) -> Client:
        """Begin; returns itself."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """Stop and wait for the last answer."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        connection = http.client.HTTPConnection(
            str(self._where.hostname), self._where.port or 80, timeout=TIMEOUT_S
        )
        due = time.monotonic()
        while not self._stop.is_set():
            at = self.sent % len(self._labels)
            self.sent += 1
            try:
                answer = infer(connection, self._model, self._images[at : at + 1])
                if self._says:
                    say(connection, self._model, answer.id, int(self._labels[at]))
            except (OSError, http.client.HTTPException, ValueError, KeyError) as exc:
                self.failures.append(f"{type(exc).__name__}: {exc}")
                connection.close()
            else:
                self.right += answer.digit == self._labels[at]
                self.variants[answer.variant] += 1
            due = max(due + self._interval_s, time.monotonic())
            time.sleep(max(0.0, due - time.monotonic()))
        connection.close()
