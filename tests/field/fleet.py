"""A fleet on loopback whose devices have slow links, small disks and wrong clocks.

Rules:
- Every process is started as a user starts it and ended by its own process id.
- A small disk is a file system in memory, in a mount name space of its own. Where the system allows
  none, its devices have a plain directory, and the report says so.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from controller.app.home import CONFIG_FILE
from controller.config import load_config
from examples.digits.box import Box, until
from tests.field.agent_with_clock import OFFSET
from tests.field.clients import answers
from tests.field.slow_link import SlowLink
from wire.broker_address import BrokerAddress

SMALL_DISK_BYTES = 24 * 1024 * 1024
SLOW_BYTES_PER_S = 256 * 1024
START_S = 240.0
"""Longest time until an agent serves after a start, on a machine that is busy with others'."""

ORPHAN_S = 30.0
"""Longest time for which a worker may outlive its agent."""

PROFILE = """\
name = "field"
architecture = "{architecture}"
memory_bytes = 268435456
storage_bytes = 16777216
runtimes = ["null"]
"""


@dataclass
class FieldDevice:
    """A device, and what is special about it."""

    name: str
    port: int
    state: Path
    """Its state directory, as this process sees it."""

    home: Path
    """Its home directory. An agent hands it on to its workers, so it tells whose a process is."""

    clock: Path
    link: SlowLink | None = None
    small_disk: bool = False
    serves_since_s: float | None = None
    """Since when it has served, on the monotonic clock; None while it is down or starting."""


class FieldFleet:
    """The fleet.

    Args:
        box: The processes; empty.
        count: How many devices.
    """

    def __init__(self, box: Box, count: int) -> None:
        self.box = box
        self.devices: list[FieldDevice] = []
        self.no_small_disks = ""
        """Why there are no small disks; empty if there are."""

        self.most_files: Counter[str] = Counter()
        """The most files that each process had open when they were counted."""

        self.broken: list[str] = []
        """Agents that did not serve again after a start."""

        self._count = count
        self._disks: subprocess.Popen[bytes] | None = None
        self._waiting: list[threading.Thread] = []

    def start(self) -> None:
        """Start the broker, the controller and all devices."""
        box = self.box
        box.initialize()
        settings = (
            box.home / CONFIG_FILE
        )  # the stolen device of `tests.field.hostile` has a password
        text = settings.read_text()
        settings.write_text(text.replace("accept_passwords = false", "accept_passwords = true"))
        box.start("broker")
        box.start("controller")
        box.until_connected()
        token = box.fleet_json("token", "create", "--uses", str(self._count))["token"]
        profile = box.root / "field.toml"
        profile.write_text(PROFILE.format(architecture=os.uname().machine))
        disks = box.root / "disks"
        disks.mkdir()
        self._mount(disks)
        for number in range(self._count):
            self.devices.append(self._add(number, profile, token, disks))
        for device in self.devices:
            self.start_device(device)
        until("all devices online", lambda: self.online() == self._count, START_S)

    def _mount(self, disks: Path) -> None:
        """Open a name space in which small file systems can be mounted."""
        unshare, nsenter = shutil.which("unshare"), shutil.which("nsenter")
        if unshare is None or nsenter is None:
            self.no_small_disks = "util-linux is not installed"
            return
        program = f"mount -t tmpfs -o size={SMALL_DISK_BYTES} tmpfs {disks} && echo && exec cat"
        self._disks = subprocess.Popen(
            [unshare, "-Urm", "sh", "-c", program],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        assert self._disks.stdout is not None
        if not self._disks.stdout.readline():
            self.no_small_disks = "no file system can be mounted here"
            self._unmount()

    def _unmount(self) -> None:
        """End the name space, and with it what is mounted there."""
        if self._disks is not None:
            with self._disks:
                pass  # its input is closed and its end awaited
            self._disks = None

    def _add(self, number: int, profile: Path, token: str, disks: Path) -> FieldDevice:
        name = f"field-{number:02d}"
        made = self.box.add_device(name, profile, token, {"fleet": "field", "row": str(number % 4)})
        directory = made.config.parent
        clock = directory / "clock"
        clock.write_bytes(OFFSET.pack(0.0))
        config = made.config.read_text()
        state, link, small = directory / "state", None, False
        if number % 4 == 1:
            link = SlowLink(self.box.device_port, SLOW_BYTES_PER_S).start()
            port = f"port = {self.box.broker_port}"
            config = config.replace(port, f"{port}\ncertificate_port = {link.port}")
        # The disk is one file system: a second device on it would fill it for the first.
        if number == 2 and self._disks is not None:
            small = True
            config = config.replace(f'"{state}"', f'"{disks / name}"')
            state = Path(f"/proc/{self._disks.pid}/root{disks / name}")
        made.config.write_text(config)
        home = directory / "home"
        home.mkdir()
        program = [sys.executable, "-P", "-m", "tests.field.agent_with_clock"]
        command = ["env", f"HOME={home}", *program, str(made.config), str(clock)]
        if small and self._disks is not None:
            inside = ["nsenter", "-t", str(self._disks.pid), "-U", "-m", "--preserve-credentials"]
            command = [*inside, *command]
        self.box.set_command(name, command)
        return FieldDevice(
            name=name, port=made.port, state=state, home=home, clock=clock, link=link,
            small_disk=small,
        )  # fmt: skip

    def start_device(self, device: FieldDevice) -> None:
        """Start an agent; another thread notices when it serves."""
        self.box.start(device.name)
        pid = self.box.pid(device.name)

        def notice() -> None:
            end_s = time.monotonic() + START_S
            while time.monotonic() < end_s and self.box.pid(device.name) == pid:
                if answers(device.port):
                    device.serves_since_s = time.monotonic()
                    return
                time.sleep(0.1)
            if self.box.pid(device.name) == pid:
                self.broken.append(f"{device.name} did not serve {START_S:.0f} s after its start")

        self._waiting = [thread for thread in self._waiting if thread.is_alive()]
        self._waiting.append(threading.Thread(target=notice, daemon=True))
        self._waiting[-1].start()

    def kill_device(self, device: FieldDevice) -> None:
        """Kill an agent and wait until its workers are gone too.

        Raises:
            TimeoutError: A worker outlived it.
        """
        device.serves_since_s = None
        self.count_files()
        self.box.kill(device.name)
        _, left = psutil.wait_procs(self.processes(device), timeout=ORPHAN_S)
        if left:
            raise TimeoutError(f"workers of {device.name} outlived it: {left}")

    def kill_worker(self, device: FieldDevice) -> bool:
        """Kill the worker that serves; return whether there was one."""
        agent = self.box.pid(device.name)
        for worker in self.processes(device):
            if worker.pid == agent:
                continue
            with contextlib.suppress(psutil.NoSuchProcess):
                worker.send_signal(signal.SIGKILL)
                return True
        return False

    def processes(self, device: FieldDevice) -> list[psutil.Process]:
        """Return the agent of a device, its workers, and what they left behind."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("HOME") == str(device.home):
                    found.append(process)
        return found

    def orphans(self) -> list[str]:
        """Return what of the devices still runs, waiting for it to end."""
        left = [process for device in self.devices for process in self.processes(device)]
        _, left = psutil.wait_procs(left, timeout=ORPHAN_S)
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        return [str(process) for process in left]

    def jump(self, device: FieldDevice, by_s: float) -> None:
        """Let a device's wall clock be wrong by so much."""
        with device.clock.open("r+b") as file:
            file.write(struct.pack("<d", by_s))

    def fill_disk(self, device: FieldDevice) -> None:
        """Take every block of a small disk."""
        with contextlib.suppress(OSError), (device.state / "filler").open("wb") as filler:
            while True:
                filler.write(bytes(4096))
                filler.flush()

    def empty_disk(self, device: FieldDevice) -> None:
        """Give the blocks back."""
        (device.state / "filler").unlink(missing_ok=True)

    def shown(self) -> list[dict[str, Any]]:
        """Return the devices as the controller knows them."""
        return list(self.box.api("/v1/devices"))

    def online(self) -> int:
        """Return how many devices are online."""
        return sum(bool(device["online"]) for device in self.shown())

    @property
    def api_port(self) -> int:
        """Port of the controller's API."""
        return load_config(self.box.home / CONFIG_FILE).api.port

    @property
    def broker_address(self) -> BrokerAddress:
        """The broker, as a client without an account reaches it."""
        broker = load_config(self.box.home / CONFIG_FILE).broker
        return BrokerAddress(port=broker.port, ca_file=broker.ca_file)

    def count_files(self) -> dict[str, int]:
        """Count the files that each process has open, and return the numbers by name."""
        found = {}
        for name in ("broker", "controller", *(device.name for device in self.devices)):
            with contextlib.suppress(psutil.Error):
                if (pid := self.box.pid(name)) is not None:
                    found[name] = psutil.Process(pid).num_fds()
        self.most_files |= Counter(found)
        return found

    def stop(self) -> list[str]:
        """Stop everything; return what had to be killed."""
        left = self.box.stop()
        for device in self.devices:
            if device.link is not None:
                device.link.stop()
        self._unmount()
        return left
