"""The other side of the devices: a real broker and controller, to which orders are given.

Rules:
- Each device has rollouts of its own, so that the cuts of one do not hold up another.
- An order ends the one before it, whether or not that has been done.
"""

from __future__ import annotations

import json
import os
import threading
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import httpx

from benchmarks.powercuts.device import PowerDevice
from benchmarks.powercuts.releases import RUNTIMES, Releases
from controller.app.home import CONFIG_FILE, read_home
from examples.digits.box import Box, BoxError, until
from packager.package.keys import load_key

PROFILE: Final = """\
name = "powercut"
architecture = "{architecture}"
memory_bytes = 1073741824
storage_bytes = 67108864
runtimes = {runtimes}
"""
API_S: Final = 60.0
ONLINE_S: Final = 120.0
CONFIRM_S: Final = 0.5
TICK_S: Final = 0.25
"""How often the controller looks at rollouts: the wait before an install is not what is tried."""

NO_DELTAS: Final = "[deltas]\nenabled = false\n"
"""What is fetched is noise: to look for deltas would only take the processor's time."""

LONG_S: Final = 86_400.0


class PowerFleet:
    """A broker, a controller, and what they have to give.

    Args:
        root: An empty directory with a short path.
        releases: How many there are; at least three, so that there is always one that neither
            serves nor was ordered last.
    """

    def __init__(self, root: Path, *, releases: int) -> None:
        self.box = Box(root / "box")
        self.releases = Releases()
        self._count = releases
        self._connected: httpx.Client | None = None
        self._rollouts: dict[str, str] = {}
        self._lock = threading.Lock()

    def start(self, names: list[str]) -> list[PowerDevice]:
        """Start broker and controller, publish all releases, and make the devices.

        Args:
            names: Of the devices.

        Returns:
            The devices; none is started.

        Raises:
            BoxError: Something does not start.
        """
        box = self.box
        box.initialize()
        settings = box.home / CONFIG_FILE
        settings.write_text(f"tick_interval_s = {TICK_S}\n{settings.read_text()}\n{NO_DELTAS}")
        box.start("broker")
        box.start("controller")
        box.until_connected()
        where = read_home(box.home)
        self._connected = httpx.Client(
            base_url=where.api_url,
            headers={"Authorization": f"Bearer {where.token_file.read_text().strip()}"},
            trust_env=False,
            timeout=API_S,
        )
        key = load_key(box.release_key)
        for number in range(1, self._count + 1):
            release = self.releases.make(number, key)
            directory = box.root / f"release-{number}"
            self.releases.packages[release].write_to(directory)
            box.fleet("release", "publish", directory)
        token = box.fleet_json("token", "create", "--uses", str(len(names)))["token"]
        profile = box.root / "powercut.toml"
        profile.write_text(
            PROFILE.format(
                architecture=os.uname().machine, runtimes=json.dumps(list(RUNTIMES.values()))
            )
        )
        return [self._add(name, profile, token) for name in names]

    @property
    def _api(self) -> httpx.Client:
        if self._connected is None:
            raise BoxError("the fleet was not started")
        return self._connected

    def _add(self, name: str, profile: Path, token: str) -> PowerDevice:
        made = self.box.add_device(name, profile, token, {"powercut": name})
        config = made.config.read_text()
        made.config.write_text(config.replace("confirm_s = 1.0", f"confirm_s = {CONFIRM_S}"))
        return PowerDevice(self.box, made)

    def stop(self) -> list[str]:
        """End broker and controller; return what had to be killed."""
        if self._connected is not None:
            self._connected.close()
        return self.box.stop()

    def until_online(self, device: str) -> None:
        """Wait until a device has enrolled and connected.

        Raises:
            BoxError: It has not.
        """

        def online() -> bool:
            shown = self._api.get("/v1/devices").raise_for_status().json()
            return any(each["id"] == device and each["online"] for each in shown)

        until(f"{device} online", online, ONLINE_S)

    def order(self, device: str, release: str) -> None:
        """Order a release for a device, in place of what was ordered before.

        Args:
            device: Its name.
            release: Its `name:version`.

        Raises:
            httpx.HTTPError: The controller refuses it.
        """
        with self._lock:
            before = self._rollouts.get(device)
            if before is not None:
                ended = self._api.post(f"/v1/rollouts/{before}/abort")
                if ended.status_code != HTTPStatus.CONFLICT:  # it has been done
                    ended.raise_for_status()
            body = {
                "release": release,
                "selector": f"powercut={device}",
                "device_deadline_s": LONG_S,
                "max_failures": 1000,
            }
            made: dict[str, Any] = (
                self._api.post("/v1/rollouts", json=body).raise_for_status().json()
            )
            self._rollouts[device] = made["id"]

    def state(self, device: str) -> str:
        """Return the state of the last order of a device, such as `succeeded`."""
        answer = self._api.get(f"/v1/rollouts/{self._rollouts[device]}").raise_for_status()
        return str(answer.json()["state"])
