"""What devices cost the broker that are let in, renew and are shut out.

First one more device, by certificate beside an account of its own.

Both roads have the same number of devices already. With passwords each has an account and a role at
the broker, whose plugin writes all of them to disk at each command. With certificates the broker
holds nothing of a device; the controller signs a certificate, which counts here, and asks that no
account is left. One device enrols at a time, in rounds that alternate. The brokers are those of
`fleet broker run`; the time of a device and of the controller's database counts on neither side.

Then the identities of a whole fleet with certificates: each device is let in, some renew over TLS,
and each is shut out. The last tenth stands beside the first.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from agent.link.tls_key import TlsKey
from benchmarks.harness import Row, against, main
from benchmarks.transfers.rig import working_folder
from controller.app.home import BROKER_FOLDER, CA_FILE, CONFIG_FILE
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
from wire import topics
from wire.broker_address import BrokerAddress
from wire.clock import SystemClock
from wire.codec import from_json, to_json
from wire.enrolment import client_id
from wire.mqtt import MqttTransport

DEVICES: Final = (4_000, 10_000)
FEW_DEVICES: Final = 400
ROUNDS: Final = 20
MS: Final = 1000.0
STEP_S: Final = 0.01
RENEWS_EVERY: Final = 10
"""Of the devices, one in so many renews: each connects anew, which takes long."""

PATIENCE_S: Final = 30.0
PASSWORD: Final = "a password of a device, as long"  # noqa: S105 - of a benchmark


@dataclass(frozen=True)
class _Road:
    """A broker, and the controller's way to its accounts."""

    access: BrokerAccess
    broker: psutil.Process
    authority: DeviceAuthority
    port: int
    """Where devices with certificates connect."""

    ca_file: Path

    def devices_at(self, key: TlsKey) -> BrokerAddress:
        """Return the broker as a device with a certificate sees it."""
        return BrokerAddress(
            port=self.port, ca_file=str(self.ca_file),
            cert_file=str(key.cert_file), key_file=str(key.key_file),
        )  # fmt: skip

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
    rows = [row for count in counts for row in _at(count, rounds, installed)]
    return [*rows, *_identities(counts[-1], installed)]


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


def _identities(count: int, installed: Mosquitto) -> list[Row]:
    names = [f"cam-{number:05}" for number in range(count)]
    with (
        working_folder() as folder,
        _running(folder / "identities", 0, installed) as road,
    ):
        key = TlsKey(folder)
        csr = key.request()

        def renew(name: str) -> None:
            key.cert_file.write_text(road.authority.sign(name, csr).pem)
            up = threading.Event()
            device = MqttTransport(
                road.devices_at(key), client_id=client_id(name, "0" * 32), will=None
            )
            device.start(lambda _message: None, lambda told: up.set() if told.up else None)
            if not (up.wait(PATIENCE_S) and device.publish(topics.up(name, "hello"), b"x")):
                raise RuntimeError(f"{name} does not connect")
            device.close()

        acts: tuple[tuple[str, Callable[[str], None], list[str]], ...] = (
            ("let in", lambda name: _enrol_by_certificate(road, name, csr), names),
            ("renewed, and connected again", renew, names[::RENEWS_EVERY]),
            ("shut out", road.access.refuse_device, names),
        )
        return [_first_and_last(road, *act) for act in acts]


def _first_and_last(road: _Road, what: str, do: Callable[[str], None], names: list[str]) -> Row:
    """Do something for all devices; return what it costs the broker for each."""
    tenth, costs_ms = len(names) // 10, []
    for start in range(0, len(names), tenth):
        before_s = road.busy_s()
        for name in names[start : start + tenth]:
            do(name)
        # The kernel counts in steps.
        costs_ms.append(max(road.busy_s() - before_s, STEP_S) * MS / tenth)
    return against(
        f"the broker's processor for each that is {what}, the last tenth of {len(names):,}",
        costs_ms[-1:], costs_ms[:1], unit="ms", peer="the first tenth",
    )  # fmt: skip


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
            process = psutil.Process(broker.pid)
            yield _Road(access, process, authority, certificates.port, home / CA_FILE)
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
