"""How the agent connects to the broker that its configuration names.

Rules:
- A password or a token never crosses a network in the clear: without TLS the agent connects only to
  a broker on this device.
- What is wrong with the connection ends no agent that serves: a device that may not connect serves
  all the same, and says at each attempt why it does not connect.
"""

from __future__ import annotations

import contextlib
import os
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from agent.app.config import AgentConfig
from agent.errors import ConfigError
from agent.link.enrolment import Connect, Login
from wire.broker_address import BrokerAddress
from wire.hosts import is_loopback
from wire.mqtt import MqttTransport
from wire.transport import Transport

OF_DOWNLOADS: Final = "name a file with the certificate of an authority, in PEM"
OF_CA: Final = "copy ca.pem from the controller's directory there"
OF_CERT: Final = "name a PEM certificate and its key, which is not encrypted"


def connect_with(config: AgentConfig) -> Connect:
    """Return what makes a connection to the broker.

    Args:
        config: The configuration.

    Returns:
        A function that raises ConfigError if the connection would not be encrypted, or if a file
        for TLS cannot be used.
    """

    def connect(login: Login) -> Transport:
        check_tls_files(config)
        return MqttTransport(
            _address(config, login),
            client_id=login.client_id,
            username=login.username,
            password=login.password,
            will=login.will,
        )

    return connect


def _address(config: AgentConfig, login: Login) -> BrokerAddress:
    """Return where a login goes, and which certificate it shows."""
    address, shown = broker_address(config), login.certificate
    if shown is None:
        return address
    return msgspec.structs.replace(
        address,
        port=config.broker.certificate_port or shown.port,
        cert_file=str(shown.cert_file),
        key_file=str(shown.key_file),
    )


def check_tls_files(config: AgentConfig) -> None:
    """Check that the files for TLS with the broker can be used.

    Args:
        config: The configuration.

    Raises:
        ConfigError: One cannot be read, or holds something else.
    """
    broker = config.broker
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if broker.ca_file is not None:
        with _usable({"broker.ca_file": broker.ca_file}, "certificate", OF_CA):
            context.load_verify_locations(broker.ca_file)
    if (downloads := config.delivery.ca_file) is not None:
        with _usable({"delivery.ca_file": downloads}, "certificate", OF_DOWNLOADS):
            context.load_verify_locations(downloads)
    if broker.cert_file is not None and broker.key_file is not None:
        files = {"broker.cert_file": broker.cert_file, "broker.key_file": broker.key_file}
        with _usable(files, "certificate with the key that belongs to it", OF_CERT):
            # Without a password OpenSSL asks for one on the terminal.
            context.load_cert_chain(broker.cert_file, broker.key_file, password="")


@contextlib.contextmanager
def _usable(files: dict[str, Path], content: str, remedy: str) -> Iterator[None]:
    """Turn the faults of OpenSSL, which names its source files, into ours.

    Args:
        files: The files by their settings, the one with the certificate first.
        content: What they should hold.
        remedy: What to do.

    Yields:
        Nothing.

    Raises:
        ConfigError: A file cannot be read or used.
    """
    setting, path = next(iter(files.items()))
    try:
        yield
    except OSError as exc:
        reason = f"it holds no {content}"
        if not isinstance(exc, ssl.SSLError):
            reason = (exc.strerror or str(exc)).lower()
            setting, path = next(
                (named for named in files.items() if not os.access(named[1], os.R_OK)),
                (setting, path),
            )
        raise ConfigError(
            f"cannot use the file {path}, which {setting} names: {reason}", remedy=remedy
        ) from exc


def broker_address(config: AgentConfig) -> BrokerAddress:
    """Return the address of the broker.

    Args:
        config: The configuration.

    Returns:
        The address.

    Raises:
        ConfigError: Passwords would cross a network in the clear.
    """
    broker = config.broker
    if broker.ca_file is None and not is_loopback(broker.host):
        raise ConfigError(
            f"without broker.ca_file passwords would go to the broker at {broker.host} in the "
            "clear",
            remedy="copy ca.pem from the controller's directory, and name it as broker.ca_file",
        )
    ca_file = None if broker.ca_file is None else str(broker.ca_file)
    address = BrokerAddress(host=broker.host, port=broker.port, ca_file=ca_file)
    if broker.cert_file is None:
        return address
    cert_file, key_file = str(broker.cert_file), str(broker.key_file)
    return msgspec.structs.replace(address, cert_file=cert_file, key_file=key_file)
