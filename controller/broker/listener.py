"""How the local broker listens, and how it may be reached, as the settings say.

Rules:
- `broker.ca_file` means TLS, for the listener and for the controller's connection alike: what would
  be clear text nevertheless is refused.
- `broker.clear_text` means clear text on loopback, where no other machine hears it.
- A directory from before TLS was the default has neither. Its broker goes on listening as it did,
  and each start says what to do; but no password is sent to another machine.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from controller.broker.accounts import OwnAccount
from controller.broker.certificates import SECONDS_PER_DAY, WARN_DAYS, ServerFiles, check
from controller.broker.errors import CertificateError
from controller.broker.mosquitto import BrokerSettings, DeviceListener
from controller.certificate_settings import DeviceCertificatesConfig
from controller.config import BrokerConfig, connectable
from controller.named_files import read_secret
from wire.clock import Clock

AS_ASKED: Final = "clear_text in controller.toml asks for it, for tests on this machine"
HOW_TO_ENCRYPT: Final = (
    "passwords and tokens of devices can be read on the network; "
    'run `fleet broker certificate DIR`, write ca_file = "ca.pem" below [broker] in '
    "controller.toml, and give each device ca.pem as its broker.ca_file"
)
_log = logging.getLogger(__name__)


def server_files(broker: BrokerConfig) -> ServerFiles | None:
    """Return the files of the local broker's certificate; None when it does not speak TLS.

    Args:
        broker: The settings.
    """
    if broker.ca_file is None:
        return None
    cert_file = Path(broker.server_cert_file)
    key_file = cert_file if broker.server_key_file is None else Path(broker.server_key_file)
    return ServerFiles(cert_file=cert_file, key_file=key_file)


def broker_settings(
    broker: BrokerConfig,
    directory: Path,
    certificates: DeviceCertificatesConfig | None = None,
) -> BrokerSettings:
    """Return how the local broker runs.

    Args:
        broker: The settings.
        directory: The broker's own directory.
        certificates: How devices log in with certificates; None if they do not.

    Returns:
        The settings of Mosquitto; with a certificate that clients will accept, or without one.

    Raises:
        CertificateError: The settings ask for TLS, and clients would refuse the certificate.
        SettingsError: The controller's password cannot be read.
    """
    files = server_files(broker)
    if files is not None and broker.ca_file is not None:
        check(files, Path(broker.ca_file), connectable(broker.host))
    devices = None
    if certificates is not None:
        devices = DeviceListener(port=certificates.port, ca_file=Path(certificates.ca_file))
    own = None
    if broker.user is not None and broker.password_file is not None:
        password = read_secret(broker.password_file, "the broker password")
        own = OwnAccount(broker.user, password)
    return BrokerSettings(
        directory=directory,
        host=broker.host,
        port=broker.port,
        certificate=files,
        devices=devices,
        own_account=own,
    )


def warning_of(broker: BrokerConfig, clock: Clock) -> str | None:
    """Return what an operator has to know about the local broker's encryption.

    Args:
        broker: The settings.
        clock: Wall time.

    Returns:
        One line, or None when all is well.
    """
    where = f"{broker.host}:{broker.port}"
    if broker.clear_text:
        return f"CLEAR TEXT: the broker at {where} is not encrypted; {AS_ASKED}"
    if broker.ca_file is None:
        return f"CLEAR TEXT: the broker at {where} is not encrypted; {HOW_TO_ENCRYPT}"
    files = server_files(broker)
    if files is None or not files.cert_file.exists():
        return None  # the broker runs elsewhere
    try:
        left_s = check(files, Path(broker.ca_file), connectable(broker.host)) - clock.now_s()
    except CertificateError as exc:
        return str(exc)
    if left_s > WARN_DAYS * SECONDS_PER_DAY:
        return None
    when = f"expires in {left_s / SECONDS_PER_DAY:.0f} days, and then no device can connect"
    return f"{files.cert_file} {when}; run `fleet broker certificate DIR`"


class EncryptionWatch:
    """Logs the warning, when the controller starts and once a day.

    Args:
        broker: The settings.
        clock: Wall time and durations.
    """

    def __init__(self, broker: BrokerConfig, clock: Clock) -> None:
        self._broker = broker
        self._clock = clock
        self._looked_at_s: float | None = None

    def look(self) -> None:
        """Log what an operator has to know, unless that was done within the last day."""
        now_s = self._clock.monotonic_s()
        if self._looked_at_s is None or now_s - self._looked_at_s >= SECONDS_PER_DAY:
            self._looked_at_s = now_s
            warning = warning_of(self._broker, self._clock)
            if warning is not None:
                _log.warning("%s", warning)
