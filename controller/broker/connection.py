"""The controller's own connection to the broker, as the settings name it."""

from __future__ import annotations

from controller.config import ControllerConfig, read_secret
from wire.mqtt import BrokerAddress, MqttTransport


def connection(config: ControllerConfig) -> MqttTransport:
    """Return the connection to the broker that the settings name.

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
        client_id=broker.client_id,
        username=broker.user,
        password=password,
    )
