"""An operator reads again and again that a broker does not encrypt."""

from __future__ import annotations

import logging

import pytest

from controller.broker.listener import EncryptionWatch
from controller.config import BrokerConfig
from tests.simulators.clock import FakeClock


@pytest.mark.parametrize("clear_text", [True, False])
def test_clear_text_is_logged_once_a_day(
    clear_text: bool, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock()
    watch = EncryptionWatch(BrokerConfig(clear_text=clear_text), clock)
    with caplog.at_level(logging.WARNING):
        for _ in range(48):
            watch.look()
            clock.advance(3600)
    assert len(caplog.messages) == 2
    assert all(message.startswith("CLEAR TEXT: ") for message in caplog.messages)


def test_a_broker_elsewhere_that_speaks_tls_is_no_concern(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker = BrokerConfig(host="broker.example", ca_file="ca.pem", server_cert_file="/nowhere")
    EncryptionWatch(broker, FakeClock()).look()
    assert caplog.messages == []
