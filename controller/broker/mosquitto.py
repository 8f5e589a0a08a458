"""Runs a local Mosquitto for a fleet without another broker.

Rules:
- The broker stores only its accounts. The controller's database holds the state of the fleet, and
  devices reconcile with it on every connect. It retains no message: no part of the fleet asks for
  one, and retained messages stay for ever.
- No part of the fleet leaves a session behind, so nothing is lost when one expires. What a client
  that is away does not hear is sent again: desired states, chunks and acknowledgements.
- It listens only at the configured address, and accepts only users that `controller.broker.access`
  made; `anonymous` exists for tests on loopback.
- With a certificate it accepts TLS alone, 1.2 or newer. Without one it speaks clear text:
  `controller.broker.listener` decides where that may be.
- Devices with certificates have a listener of their own, which takes no password: who a client is
  there stands in its certificate, and `controller.broker.rights` says what it may do.
- Only the owner may read the files (0600). When root starts Mosquitto, it changes to the user that
  owns the directory.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NoReturn

from controller.broker.accounts import (
    ACCOUNTS_FILE,
    OwnAccount,
    give_password,
    read_accounts,
)
from controller.broker.certificates import ServerFiles
from controller.broker.directory_owner import owner_of
from controller.broker.errors import (
    BrokerDirectoryError,
    BrokerError,
    BrokerPortError,
    BrokerStartError,
)
from controller.broker.install import Mosquitto
from controller.broker.rights import certificate_patterns
from controller.config import connectable
from wire.clock import Clock, SystemClock
from wire.files import PRIVATE, write_atomic

CONFIG_FILE = "mosquitto.conf"
PATTERNS_FILE = "certificates.acl"
LOG_FILE = "broker.log"
MAX_PACKET_BYTES = 300_000
"""Our messages are at most 256 KiB; the rest is for topic and properties."""

MAX_INFLIGHT_MESSAGES = 100
MAX_QUEUED_MESSAGES = 2000
"""For each client, above those in flight. A device is sent 64 chunks at most at one time. The
controller reads a burst of greetings into its own inbox; one that is lost comes again."""

MAX_QUEUED_BYTES = 8 * 1024 * 1024
"""Twice what the controller lets be under way to one device. A device that lies about what has come
makes the broker keep no more than this beside what is in flight. What is dropped is asked for
again."""

SESSION_EXPIRY = "1h"
"""The shortest time that Mosquitto takes. It bounds the sessions that a stranger leaves."""

MAX_LOG_BYTES = 1024 * 1024
START_TIMEOUT_S = 10.0
STOP_TIMEOUT_S = 5.0
POLL_S = 0.02

CONFIG = """\
# Written again at every start; change controller.toml instead.
listener {port} {host}{tls}{devices}
{access}
# Without it a round trip takes 92 ms instead of 0.25.
set_tcp_nodelay true
persistence false
retain_available false
persistent_client_expiration {session_expiry}
max_packet_size {max_packet_bytes}
max_inflight_messages {max_inflight}
max_queued_messages {max_queued}
max_queued_bytes {max_queued_bytes}
connection_messages false
log_dest stderr
log_type error
log_type warning
log_type notice
log_type information
user {user}
"""


DEVICES = """
listener {port} {host}{tls}
cafile {ca_file}
require_certificate true
use_identity_as_username true"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceListener:
    """Where a broker listens for devices with certificates."""

    port: int
    ca_file: Path
    """The authority that signs their certificates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """Where a broker runs."""

    directory: Path
    host: str = "127.0.0.1"
    port: int = 1883
    anonymous: bool = False
    """Let anybody do anything: for tests on loopback."""

    certificate: ServerFiles | None = None
    """The certificate for TLS; None for clear text."""

    devices: DeviceListener | None = None
    """None for a broker that knows passwords alone. It needs `certificate`."""

    own_account: OwnAccount | None = None
    """The controller's; None to leave the accounts as they are."""


class Broker:
    """A Mosquitto process.

    Args:
        settings: Where it runs.
        installation: What runs.
        clock: Source of time.
    """

    def __init__(
        self, settings: BrokerSettings, installation: Mosquitto, *, clock: Clock | None = None
    ) -> None:
        self._settings = settings
        self._installation = installation
        self._clock = clock or SystemClock()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The process, or None when it does not run."""
        process = self._process
        return None if process is None or process.poll() is not None else process.pid

    def start(self) -> None:
        """Start the broker and wait until it accepts connections.

        Raises:
            BrokerError: The port is in use, the directory cannot be written, or the plugin is
                missing.
            BrokerStartError: The program cannot be started, ends, or accepts no connections.
        """
        with owner_of(self._settings.directory):
            self._prepare()
            log = self._log()
        with log:
            try:
                self._process = subprocess.Popen(
                    self._command(),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=self._installation.environment(),
                )
            except OSError as exc:
                raise BrokerStartError(f"cannot start {self._installation.program}: {exc}") from exc
        try:
            self._wait_until_accepting()
        except BrokerError:
            self.stop()
            raise

    def exec(self) -> NoReturn:
        """Replace this process with the broker, which keeps the process id.

        So no parent process can be killed alone, and signals reach the broker directly.

        Raises:
            BrokerError: As for `start`, as far as this process can check it.
            BrokerStartError: The program cannot be started.
        """
        with owner_of(self._settings.directory):
            self._prepare()
        command = self._command()
        try:
            os.execve(command[0], command, self._installation.environment())  # noqa: S606 - no shell is wanted
        except OSError as exc:
            raise BrokerStartError(f"cannot start {command[0]}: {exc}") from exc

    def stop(self) -> None:
        """End the broker, if it runs."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End the broker as a crash does."""
        self._end(signal.SIGKILL)

    def _prepare(self) -> None:
        settings = self._settings
        check_port(settings.host, settings.port)
        if settings.devices is not None:
            check_port(settings.host, settings.devices.port)
        text = config_text(settings, None if settings.anonymous else self._installation.plugin)
        try:
            settings.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            for name, content in ((PATTERNS_FILE, certificate_patterns()), (CONFIG_FILE, text)):
                write_atomic(settings.directory / name, content.encode(), mode=PRIVATE)
        except OSError as exc:
            raise self._unwritable(exc) from exc
        if not settings.anonymous:
            accounts = settings.directory / ACCOUNTS_FILE
            read_accounts(accounts)
            if settings.own_account is not None:
                give_password(accounts, settings.own_account)

    def _log(self) -> IO[bytes]:
        path = self._settings.directory / LOG_FILE
        try:
            if path.exists() and path.stat().st_size > MAX_LOG_BYTES:
                path.unlink()
            with contextlib.suppress(PermissionError):
                return open(path, "ab", opener=_private_opener)
            path.unlink()  # of root, who started an earlier version
            return open(path, "ab", opener=_private_opener)
        except OSError as exc:
            raise self._unwritable(exc) from exc

    def _unwritable(self, exc: OSError) -> BrokerDirectoryError:
        return BrokerDirectoryError(
            f"cannot write the broker's directory {self._settings.directory}: {exc.strerror}",
            remedy="run as its owner, or choose another directory",
        )

    def _command(self) -> list[str]:
        return [str(self._installation.program), "-c", str(self._settings.directory / CONFIG_FILE)]

    def _wait_until_accepting(self) -> None:
        settings = self._settings
        deadline_s = self._clock.monotonic_s() + START_TIMEOUT_S
        while self._clock.monotonic_s() < deadline_s:
            if self.pid is None:
                raise BrokerStartError(f"the broker ended at once: {self._last_log_line()}")
            ports = [settings.port, *([settings.devices.port] if settings.devices else ())]
            try:
                for port in ports:
                    socket.create_connection((connectable(settings.host), port), timeout=1).close()
            except OSError:
                self._clock.sleep(POLL_S)
            else:
                return
        raise BrokerStartError(
            f"the broker did not accept connections within {START_TIMEOUT_S:.0f} s: "
            f"{self._last_log_line()}"
        )

    def _last_log_line(self) -> str:
        try:
            data = (self._settings.directory / LOG_FILE).read_bytes()[-4096:]
        except OSError:
            return "it wrote no log"
        lines = data.decode(errors="replace").strip().splitlines()
        faults = [line for line in lines if "Error" in line] or lines
        return faults[-1].split(": ", 1)[-1].rstrip(".") if faults else "it wrote no log"

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(how)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_TIMEOUT_S)


def config_text(settings: BrokerSettings, plugin: Path | None) -> str:
    """Return Mosquitto's configuration.

    Args:
        settings: Where it runs.
        plugin: The dynamic-security plugin; None lets anybody in.

    Returns:
        The file's text.

    Raises:
        BrokerDirectoryError: A path has a line break, which the file cannot hold.
    """
    accounts, patterns = (settings.directory / name for name in (ACCOUNTS_FILE, PATTERNS_FILE))
    tls, files, devices = "", settings.certificate, settings.devices
    if files is not None:
        tls = f"\ntls_version tlsv1.2\ncertfile {files.cert_file}\nkeyfile {files.key_file}"
    access, own_listener = "allow_anonymous true", ""
    if plugin is not None:
        access = f"allow_anonymous false\nplugin {plugin}\nplugin_opt_config_file {accounts}"
    if devices is not None:
        access = f"{access}\nacl_file {patterns}"
        own_listener = DEVICES.format(
            port=devices.port, host=settings.host, tls=tls, ca_file=devices.ca_file
        )
    paths = (
        *(accounts, plugin, *((files.cert_file, files.key_file) if files else ())),
        *((devices.ca_file,) if devices else ()),
    )
    if any(char in f"{settings.host}{path}" for path in paths for char in "\r\n"):
        raise BrokerDirectoryError("a file or the host of the broker has a line break in its name")
    return CONFIG.format(
        port=settings.port,
        host=settings.host,
        tls=tls,
        devices=own_listener,
        access=access,
        max_packet_bytes=MAX_PACKET_BYTES,
        max_inflight=MAX_INFLIGHT_MESSAGES,
        max_queued=MAX_QUEUED_MESSAGES,
        max_queued_bytes=MAX_QUEUED_BYTES,
        session_expiry=SESSION_EXPIRY,
        user=_user_of(settings.directory),
    )


def check_port(host: str, port: int) -> None:
    """Check that a server can listen.

    Args:
        host: Address or name.
        port: TCP port.

    Raises:
        BrokerPortError: Another server is there, or the address is not ours.
    """
    try:
        family, kind, protocol, _name, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except (OSError, UnicodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else None
        raise BrokerPortError(
            f"the broker cannot listen on {host}:{port}: {(reason or str(exc)).lower()}",
            remedy="stop the other broker (systemctl disable --now mosquitto), or set another "
            "port in controller.toml",
        ) from exc


def _user_of(directory: Path) -> str:
    """Return the user that Mosquitto changes to when root starts it: the directory's owner."""
    existing = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    try:
        return pwd.getpwuid(existing.lstat().st_uid).pw_name
    except KeyError:  # an owner without a name, as in containers
        return "root"


def _private_opener(path: str, flags: int) -> int:
    # A pipe in the place of a file makes nobody wait.
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
