"""How the agent connects to the broker that its configuration names.

Rules:
- A password or a token never crosses a network in the clear: without TLS the agent connects only to
  a broker on this device.
- What is wrong with the connection is found when it is made, and not before: a device that may not
  connect serves all the same.
"""

from __future__ import annotations

from agent.app.config import AgentConfig
from agent.errors import ConfigError
from agent.link.enrolment import Connect, Login
from wire.hosts import is_loopback
from wire.mqtt import BrokerAddress, MqttTransport
from wire.transport import Transport


def connect_with(config: AgentConfig) -> Connect:
    """Return what makes a connection to the broker.

    Args:
        config: The configuration.

    Returns:
        A function that raises ConfigError if the connection would not be encrypted, and
        TransportError if a certificate file cannot be read.
    """

    def connect(login: Login) -> Transport:
        return MqttTransport(
            broker_address(config),
            client_id=login.client_id,
            username=login.username,
            password=login.password,
            will=login.will,
        )

    return connect


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
    files = (broker.ca_file, broker.cert_file, broker.key_file)
    ca_file, cert_file, key_file = (None if file is None else str(file) for file in files)
    return BrokerAddress(
        host=broker.host, port=broker.port, ca_file=ca_file, cert_file=cert_file, key_file=key_file
    )
