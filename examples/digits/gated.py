"""A release that devices install without a fault, and that a gate stops by what they measure.

Ten further devices run the good release. Half of them get another one; the rest keep the old one to
compare with. An application on each sends what its camera sees towards evening and says afterwards
which digit it was.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np

from examples.digits.box import Box, BoxError, until
from examples.digits.client import Client
from examples.digits.dusk import evening, smooth_dark

MODEL: Final = "digits"
VERSION: Final = "1.3.0"
BOOTHS: Final = tuple(f"booth-{number:02d}" for number in range(1, 11))
SELECTOR: Final = "site=booth"
RATE_HZ: Final = 8.0
GATES: Final = (
    "mean(feedback_accuracy_ratio) >= -5pp",
    "p95(inference_latency_ms) <= +100%",
)
"""Twice the latency is allowed, because two processors that run all of this are not quiet."""
SOAK: Final = "90s"
"""Gates are looked at after whole minutes; the halt comes long before."""

HALT_S: Final = 300.0


class Booths:
    """The devices, and what their applications do.

    Args:
        box: A box with a broker and a controller.
        root: Folder with the model, `digits.onnx`.
        profile: What the devices are, and what the release is built for.
        good: The version that they run first.
    """

    def __init__(self, box: Box, root: Path, *, profile: Path, good: str) -> None:
        self._box = box
        self._root = root
        self._profile = profile
        self._good = good

    def publish(self, data: Path, cache: Path) -> None:
        """Build and publish the release that is worse where it is dark.

        Args:
            data: Folder with `calibration.npz` and `evaluation.npz`, whose pictures are all bright.
            cache: Where builds keep what they made.

        Raises:
            BoxError: It did not pass its build.
        """
        model, package = self._box.root / "dusk.onnx", self._box.root / f"{MODEL}-{VERSION}"
        smooth_dark(self._root / "digits.onnx", model)
        status = self._box.show(
            "build", model, "--profile", self._profile,
            "--calibration", data / "calibration.npz", "--evaluation", data / "evaluation.npz",
            "--metric", "top1", "--min-retention", "0.99", "--name", MODEL, "--version", VERSION,
            "--key", self._box.release_key, "--cache", cache, "-o", package,
        )  # fmt: skip
        if status != 0:
            raise BoxError(f"the build ended with status {status}")
        self._box.show("release", "publish", package)

    def enrol(self) -> None:
        """Start the devices, and bring the good release to them.

        Raises:
            BoxError: It did not come to all of them.
        """
        token = self._box.fleet_json("token", "create", "--uses", str(len(BOOTHS)))["token"]
        more = "[feedback]\nenabled = true\n"
        for name in BOOTHS:
            device = self._box.add_device(name, self._profile, token, {"site": "booth"})
            device.config.write_text(device.config.read_text() + more)
            self._box.start(name)
        until("ten more devices online", lambda: self._count("online", "true") == len(BOOTHS), 120)
        words = ("rollout", "create", f"{MODEL}:{self._good}", "--selector", SELECTOR)
        if self._box.show(*words, "--watch") != 0:
            raise BoxError("the good release did not come to all of them")

    def roll_out(self, images: Any, labels: Any) -> None:  # noqa: ANN401 - arrays
        """Roll the other release out under gates while applications work.

        Args:
            images: What cameras see by day, shape (N, 1, 8, 8).
            labels: Which digits these are, shape (N,).

        Raises:
            BoxError: It was not halted by a gate.
        """
        seen = evening(np.asarray(images, np.float32))
        clients = [
            Client(
                self._box.devices[name].url, MODEL, np.roll(seen, 40 * at, 0),
                np.roll(labels, 40 * at), rate_hz=RATE_HZ, says_what_was_right=True,
            ).start()
            for at, name in enumerate(BOOTHS)
        ]  # fmt: skip
        try:
            words = ("rollout", "create", f"{MODEL}:{VERSION}", "--selector", SELECTOR)
            gates = [word for gate in GATES for word in ("--gate", gate)]
            status = self._box.show(
                *words, "--stage", "50%", "--stage", "100%", "--control", "50%", "--soak", SOAK,
                *gates, "--watch",
            )  # fmt: skip
            if status != 1:
                until("the halt", lambda: self._newest()["state"] == "halted", HALT_S)
        finally:
            for client in clients:
                client.stop()
        failures = [fault for client in clients for fault in client.failures]
        if failures:
            raise BoxError(f"requests failed: {failures[:3]}")
        newest = self._newest()
        if newest["state"] != "halted" or not newest["reason"].startswith("gate "):
            raise BoxError(f"the rollout is {newest['state']}: {newest['reason']}")
        self._box.show("rollout", "explain", newest["id"])

    def _count(self, key: str, value: str) -> int:
        found = self._box.api("/v1/devices?selector=site%3Dbooth")
        return sum(str(device[key]).lower() == value for device in found)

    def _newest(self) -> dict[str, Any]:
        found: list[dict[str, Any]] = self._box.api("/v1/rollouts")
        newest = max(found, key=lambda rollout: float(rollout["created_at_s"]))
        return dict(self._box.api(f"/v1/rollouts/{newest['id']}"))
