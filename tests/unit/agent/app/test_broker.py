"""Without TLS, nothing goes to a broker on another machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.app.broker import connect_with
from agent.app.config import AgentConfig, BrokerConfig
from agent.errors import ConfigError
from agent.link.enrolment import Login


def config(broker: BrokerConfig) -> AgentConfig:
    return AgentConfig(
        device="dev-1", state_dir=Path("s"), profile=Path("p"), trust=Path("t"), broker=broker
    )


@pytest.mark.parametrize("host", ["192.0.2.1", "b.example", "0.0.0.0", "localhost.evil"])  # noqa: S104 - refused
def test_passwords_do_not_leave_the_device_in_the_clear(host: str) -> None:
    connect = connect_with(config(BrokerConfig(host=host)))
    with pytest.raises(
        ConfigError, match=rf"without broker\.ca_file .* {host} in the clear"
    ) as info:
        connect(Login(client_id="dev-1", username="dev-1", password="secret"))
    assert "ca.pem" in info.value.remedy
    assert "secret" not in str(info.value)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "::1"])
def test_a_broker_on_the_device_needs_no_tls(host: str) -> None:
    assert connect_with(config(BrokerConfig(host=host)))(Login(client_id="dev-1")) is not None
