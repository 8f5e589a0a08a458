"""An application on the device: sends digits to the endpoint without pause and counts.

Rules:
- It speaks the Open Inference Protocol with binary tensors over one keep-alive connection.
- Whatever is not a 200 with the right number of outputs is a failed request; none is retried.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections import Counter
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

TIMEOUT_S = 10.0


def infer(
    connection: http.client.HTTPConnection, model: str, image: NDArray[np.float32]
) -> tuple[int, str]:
    """Send one image and return the digit and the variant that answered.

    Args:
        connection: An open connection to the endpoint.
        model: The model's name.
        image: Shape (1, 1, 8, 8), values 0 to 1.

    Returns:
        The digit and the variant's name.

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
    return int(logits.argmax()), str(answer["parameters"]["variant"])


class Client:
    """A thread that sends requests at a steady rate until it is stopped.

    Args:
        url: The endpoint.
        model: The model's name.
        images: Shape (N, 1, 8, 8).
        labels: Shape (N,).
        rate_hz: Requests per second.
    """

    def __init__(
        self,
        url: str,
        model: str,
        images: NDArray[np.float32],
        labels: NDArray[np.int64],
        *,
        rate_hz: float = 100.0,
    ) -> None:
        self._where = urlsplit(url)
        self._model, self._images, self._labels = model, images, labels
        self._interval_s = 1.0 / rate_hz
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
                digit, variant = infer(connection, self._model, self._images[at : at + 1])
            except (OSError, http.client.HTTPException, ValueError, KeyError) as exc:
                self.failures.append(f"{type(exc).__name__}: {exc}")
                connection.close()
            else:
                self.right += digit == self._labels[at]
                self.variants[variant] += 1
            due = max(due + self._interval_s, time.monotonic())
            time.sleep(max(0.0, due - time.monotonic()))
        connection.close()
