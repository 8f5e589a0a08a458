"""The controller's own connections to the broker, as the settings name them.

Rules:
- No two connections have the same client identifier, and nobody can guess one: a second connection
  with the same identifier would end the controller's.
- Without TLS the password goes to loopback alone. No name is looked up to find out where a broker
  is: the next lookup, which connects, could have another answer.
"""

from __future__ import annotations

import secrets

from controller.broker.errors import ClearTextError
from controller.config import BrokerConfig, ControllerConfig, connectable
from controller.named_files import read_secret
from wire.broker_address import BrokerAddress
from wire.hosts import is_loopback
from wire.mqtt import MqttTransport

UNACKNOWLEDGED_BYTES = 64 * 1024 * 1024
"""Chunks for eight devices at one time, or desired states for 20,000. What is over is asked for
again, or sent again."""

SECRET_BYTES = 16


def connection(config: ControllerConfig) -> MqttTransport:
    """Return a new connection to the broker that the settings name.

    Args:
        config: The settings.

    Returns:
        The transport, not started.

    Raises:
        ClearTextError: The password would cross a network in the clear.
        SettingsError: The password cannot be read.
        TransportError: A certificate cannot be read.
    """
    broker = config.broker
    if broker.ca_file is None:
        _refuse_another_machine(broker)
    password = None
    if broker.password_file is not None:
        password = read_secret(broker.password_file, "the broker password")
    return MqttTransport(
        BrokerAddress(
            host=connectable(broker.host),
            port=broker.port,
            ca_file=broker.ca_file,
            cert_file=broker.cert_file,
            key_file=broker.key_file,
        ),
        client_id=f"{broker.client_id}-{secrets.token_hex(SECRET_BYTES)}",
        username=broker.user,
        password=password,
        unacknowledged_bytes=UNACKNOWLEDGED_BYTES,
    )


def _refuse_another_machine(broker: BrokerConfig) -> None:
    """Insist that a broker without TLS is on loopback.

    Raises:
        ClearTextError: It is not.
    """
    if not is_loopback(connectable(broker.host)):
        raise ClearTextError(
            f"the broker at {broker.host} may be on another machine, and without broker.ca_file "
            "the controller's password would go there in the clear",
            remedy="name the authority of its certificate as broker.ca_file in controller.toml; "
            'for a broker on this machine write host = "127.0.0.1", or "0.0.0.0" if it is to '
            "listen on all addresses",
        )
