"""The controller's own connections to the broker, as the settings name them.

Rules:
- No two connections have the same client identifier, and nobody can guess one: a second connection
  with the same identifier would end the controller's.
"""

from __future__ import annotations

import secrets

from controller.config import ControllerConfig, read_secret
from wire.mqtt import BrokerAddress, MqttTransport

SECRET_BYTES = 16


def connection(config: ControllerConfig) -> MqttTransport:
    """Return a new connection to the broker that the settings name.

    Args:
        config: The settings.

    Returns:
        The transport, not started.

    Raises:
        SettingsError: The password cannot be read.
        TransportError: A certificate cannot be read.
    """
    broker = config.broker
    password = None
    if broker.password_file is not None:
        password = read_secret(broker.password_file, "the broker password")
    return MqttTransport(
        BrokerAddress(
            host=broker.host,
            port=broker.port,
            ca_file=broker.ca_file,
            cert_file=broker.cert_file,
            key_file=broker.key_file,
        ),
        client_id=f"{broker.client_id}-{secrets.token_hex(SECRET_BYTES)}",
        username=broker.user,
        password=password,
    )
