"""What letting one more device in costs the broker, by certificate beside an account of its own.

Both roads have the same number of devices already. With passwords each has an account and a role at
the broker, whose plugin writes all of them to disk at each command. With certificates the broker
holds nothing of a device; the controller signs a certificate, which counts here, and asks that no
account is left. One device enrols at a time, in rounds that alternate. The brokers are those of
`fleet broker run`; the time of a device and of the controller's database counts on neither side.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from benchmarks.harness import Row, against, main
from benchmarks.transfers.rig import working_folder
from controller.app.home import BROKER_FOLDER, CONFIG_FILE
from controller.app.new_home import HomeOptions, create_home
from controller.broker.access import access_for
from controller.broker.accounts import ACCOUNTS_FILE, hashed_client
from controller.broker.device_authority import DeviceAuthority
from controller.broker.install import Mosquitto, locate
from controller.broker.listener import broker_settings
from controller.broker.mosquitto import Broker
from controller.broker.rights import device_acls, device_role
from controller.config import load_config
from controller.ports import BrokerAccess
from examples.digits.box import free_port
from wire.clock import SystemClock
from wire.codec import from_json, to_json
from wire.enrolment import client_id

DEVICES: Final = (4_000, 10_000)
FEW_DEVICES: Final = 400
ROUNDS: Final = 20
MS: Final = 1000.0
PASSWORD: Final = "a password of a device, as long"  # noqa: S105 - of a benchmark


@dataclass(frozen=True)
class _Road:
    """A broker, and the controller's way to its accounts."""

    access: BrokerAccess
    broker: psutil.Process
    authority: DeviceAuthority

    def busy_s(self) -> float:
        """Return how long the broker's processor worked so far."""
        spent = self.broker.cpu_times()
        return float(spent.user + spent.system)


def measure(quick: bool) -> list[Row]:
    """Enrol devices by both roads, alternately.

    Args:
        quick: Few devices and rounds.

    Returns:
        The rows.

    Raises:
        RuntimeError: Mosquitto is not installed.
    """
    installed = locate(Path("/nowhere"))
    if installed is None:
        raise RuntimeError("Mosquitto is not installed")
    counts, rounds = ((FEW_DEVICES,), 5) if quick else (DEVICES, ROUNDS)
    return [row for count in counts for row in _at(count, rounds, installed)]


def _at(count: int, rounds: int, installed: Mosquitto) -> list[Row]:
    csr = _csr()
    took: dict[bool, list[float]] = {True: [], False: []}
    busy: dict[bool, list[float]] = {True: [], False: []}
    with (
        working_folder() as folder,
        _running(folder / "certificates", 0, installed) as by_certificate,
        _running(folder / "passwords", count, installed) as by_password,
    ):
        _enrol_by_certificate(by_certificate, "first", csr)  # connects
        _enrol_by_password(by_password, "first")
        for number in range(rounds):
            name = f"new-{number:05}"
            for certified in (True, False) if number % 2 else (False, True):
                road = by_certificate if certified else by_password
                before_s, start_s = road.busy_s(), time.perf_counter()
                if certified:
                    _enrol_by_certificate(road, name, csr)
                else:
                    _enrol_by_password(road, name)
                took[certified].append((time.perf_counter() - start_s) * MS)
                busy[certified].append((road.busy_s() - before_s) * MS)
    title, peer = f"with {count:,} devices", "an account"
    # The kernel counts a process's time in steps of 10 ms: only a sum of many says something.
    sums = [[sum(busy[each])] for each in (True, False)]
    rows = [against(f"one more {title}", took[True], took[False], unit="ms", peer=peer)]
    if sums[1][0]:
        name = f"the broker's processor for {rounds} more {title}"
        rows.append(against(name, *sums, unit="ms", peer=peer))
    return rows


@contextlib.contextmanager
def _running(home: Path, accounts: int, installed: Mosquitto) -> Iterator[_Road]:
    create_home(home, HomeOptions(broker_port=free_port(), device_port=free_port()))
    config = load_config(home / CONFIG_FILE)
    certificates = config.device_certificates
    if certificates is None:
        raise RuntimeError("a new directory has no certificates for devices")
    _add_accounts(home / BROKER_FOLDER / ACCOUNTS_FILE, accounts)
    broker = Broker(broker_settings(config.broker, home / BROKER_FOLDER, certificates), installed)
    broker.start()
    try:
        with contextlib.closing(access_for(config)) as access:
            authority = DeviceAuthority(certificates, SystemClock())
            yield _Road(access, psutil.Process(broker.pid), authority)
    finally:
        broker.stop()


def _add_accounts(path: Path, count: int) -> None:
    """Write accounts as the plugin itself does."""
    document = from_json(path.read_bytes(), dict)
    for number in range(count):
        name = f"cam-{number:05}"
        roles = [{"rolename": device_role(name)}]
        account = hashed_client(name, PASSWORD) | {"roles": roles}
        document["clients"].append(account | {"clientid": client_id(name, "0" * 32)})
        document["roles"].append({"rolename": device_role(name), "acls": device_acls(name)})
    path.write_bytes(to_json(document))


def _enrol_by_certificate(road: _Road, name: str, csr: str) -> None:
    road.access.allow_certificate(name)
    road.authority.sign(name, csr)


def _enrol_by_password(road: _Road, name: str) -> None:
    road.access.allow_device(name, PASSWORD, client_id(name, "0" * 32))


def _csr() -> str:
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    request = builder.sign(ec.generate_private_key(ec.SECP256R1()), hashes.SHA256())
    return request.public_bytes(serialization.Encoding.PEM).decode()


if __name__ == "__main__":
    sys.exit(main("Enrolling one more device", measure))
