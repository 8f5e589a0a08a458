"""A controller and a broker as users run them, with a release and devices that may fetch it.

Rules:
- Both are processes of their own, with the settings that we ship. Only the accounts are left out:
  the broker lets everybody in, so that hundreds of devices need no enrolment.
- The devices and what they should run are written to the controller's database; the release is
  published as users publish it.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import psutil

from agent.install.fetch.part import Blob
from benchmarks.transfers.crowd import Crowd
from benchmarks.transfers.orders import Setup
from controller.app.home import TRUST_FILE
from controller.broker.install import locate
from controller.broker.listener import server_files
from controller.broker.mosquitto import Broker, BrokerSettings
from controller.config import load_config
from controller.store import desired
from controller.store.database import Database
from examples.digits.box import free_port
from tests.simulators.packages import package, variant
from tests.simulators.patience import until
from tests.simulators.stack import Stack, fleet
from tests.simulators.stored_fleet import add_device
from wire.broker_address import BrokerAddress
from wire.package.index import CHUNK_BYTES
from wire.trust.envelope import SigningKey

MEMORY: Final = Path("/dev/shm")  # noqa: S108 - a mount, in which a directory of our own is made
ROOM_BYTES: Final = 4 * 1024**3
MODEL: Final = "digits"
"""The name of the release."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rig:
    """What runs."""

    folder: Path
    address: BrokerAddress
    blobs: dict[str, Blob]
    files: dict[str, Path]
    """The blobs as plain files, for peers."""

    devices: tuple[str, ...]
    controller: psutil.Process
    broker: psutil.Process
    stack: Stack

    def crowd(self, names: Sequence[str], **ports: int) -> Crowd:
        """Return the driver of some devices.

        Args:
            names: Who they are; each may be driven by one driver at one time.
            ports: Another port than the broker's own by the names of devices, with `_` for `-`.
        """
        devices = {
            name: msgspec.structs.replace(
                self.address, port=ports.get(name.replace("-", "_"), self.address.port)
            )
            for name in names
        }
        trust = str(self.stack.home / TRUST_FILE)
        return Crowd(Setup(devices=devices, blobs=self.blobs, trust=trust, folder=str(self.folder)))


@contextlib.contextmanager
def working_folder() -> Iterator[Path]:
    """Make a folder, in memory if there is room, so that no disk is measured."""
    place: Path | None = MEMORY
    try:
        if shutil.disk_usage(MEMORY).free < ROOM_BYTES:
            place = None
    except OSError:
        place = None
    with tempfile.TemporaryDirectory(prefix="edgefleet-transfer-", dir=place) as folder:
        yield Path(folder)


@contextlib.contextmanager
def running_rig(
    folder: Path,
    sizes_bytes: dict[str, int],
    devices: int,
    *,
    tls: bool = False,
) -> Iterator[Rig]:
    """Run a controller and a broker for the length of a `with` block.

    Args:
        folder: For all files; empty.
        sizes_bytes: The files of the release, by name.
        devices: How many devices the controller knows.
        tls: Whether the broker speaks TLS, as it does by default.

    Raises:
        RuntimeError: Something does not start.
    """
    installed = locate(Path("/nowhere"))
    if installed is None:
        raise RuntimeError("Mosquitto is not installed")
    stack = Stack(home=folder / "home", api_port=free_port(), broker_port=free_port())
    _make_home(stack, tls=tls)
    config = load_config(stack.home / "controller.toml")
    broker = Broker(
        BrokerSettings(
            directory=stack.home / "broker",
            port=stack.broker_port,
            anonymous=True,
            certificate=server_files(config.broker),
        ),
        installed,
    )
    broker.start()
    try:
        process = stack.run("controller", "run")
        until(stack.is_healthy, lambda: f"a controller: {stack.log}", step_s=0.05)
        blobs, files, digest = _publish(stack, folder / "package", sizes_bytes)
        names = tuple(f"dev-{number:03}" for number in range(devices))
        _assign(config.database_url, names, digest)
        yield Rig(
            folder=folder,
            address=BrokerAddress(port=stack.broker_port, ca_file=config.broker.ca_file),
            blobs=blobs,
            files=files,
            devices=names,
            controller=psutil.Process(process.pid),
            broker=psutil.Process(broker.pid),
            stack=stack,
        )
    finally:
        stack.stop()
        broker.stop()


def _make_home(stack: Stack, *, tls: bool) -> None:
    made = fleet(
        "init", str(stack.home), "--api-port", str(stack.api_port),
        "--broker-port", str(stack.broker_port), *([] if tls else ["--clear-text"]),
    )  # fmt: skip
    if made.code:
        raise RuntimeError(made.err)
    settings = stack.home / "controller.toml"
    # What is fetched is random: to look for deltas would only take the processor's time.
    no_deltas = "[deltas]\nenabled = false\n"
    settings.write_text(f'access = "open"\n{settings.read_text()}\n{no_deltas}')


def _publish(
    stack: Stack, folder: Path, sizes_bytes: dict[str, int]
) -> tuple[dict[str, Blob], dict[str, Path], str]:
    """Publish a release with files of these sizes; return them and its digest."""
    contents = {name: random.Random(name).randbytes(size) for name, size in sizes_bytes.items()}
    made = package(
        "1",
        [(variant(name), content) for name, content in contents.items()],
        name=MODEL,
        key=SigningKey(stack.release_key.read_bytes()),
        chunk_bytes=CHUNK_BYTES,
    )
    made.write_to(folder)
    stack.ok("release", "publish", str(folder))
    entries = {entry.path: entry for entry in made.index.files}
    paths = {name: f"{variant(name).directory}/model.json" for name in sizes_bytes}
    blobs = {name: Blob.of_file(entries[path], CHUNK_BYTES) for name, path in paths.items()}
    return blobs, {name: folder / path for name, path in paths.items()}, made.digest


def _assign(database_url: str, names: Sequence[str], digest: str) -> None:
    """Let devices read a release."""
    database = Database(database_url)
    try:
        with database.transaction() as session:
            for name in names:
                add_device(session, name)
            session.flush()
            desired.issue(session, MODEL, dict.fromkeys(names, digest), rollout=None, now_s=1.0)
    finally:
        database.close()
