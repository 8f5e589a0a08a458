"""Makes what connects the device to its controller, from the configuration; nothing runs yet."""

from __future__ import annotations

from agent.app.broker import connect_with
from agent.app.config import AgentConfig
from agent.app.named_files import load_token
from agent.app.serial_number import serial_number
from agent.interrupts import Interrupts
from agent.link.connection import Link
from agent.link.connector import Connector
from agent.link.enrolment import Applicant, Enrolment
from agent.link.identity import Account, Identity
from agent.link.renewal import Renewal
from agent.link.tls_key import TlsKey
from wire.clock import Clock
from wire.profile import DeviceProfile
from wire.trust.root import Trust
from wire.version import VERSION


def connector(
    config: AgentConfig,
    profile: DeviceProfile,
    trust: Trust,
    link: Link,
    renewal: Renewal,
    *,
    interrupts: Interrupts,
    clock: Clock,
) -> Connector:
    """Return what enrols the device and opens its link.

    Args:
        config: The configuration of this device.
        profile: Its profile.
        trust: The keys that may sign the controller's answers.
        link: The link to open.
        renewal: Renews the certificate, if the controller gives one.
        interrupts: Ends the waiting.
        clock: For deadlines.

    Returns:
        The connector.
    """
    connect = connect_with(config)
    applicant = Applicant(
        device=config.device,
        profile=profile,
        labels=config.labels,
        agent_version=VERSION,
        serial=serial_number(config),
    )

    def identity() -> Identity | Account:
        if config.broker.cert_file is not None:
            return Account(client_id=config.device, username=config.device, password=None)
        key = TlsKey(config.state_dir, config.broker.key_file)
        return Identity(config.state_dir, config.device, key)

    return Connector(
        link,
        connect,
        identity,
        lambda known: Enrolment(
            applicant,
            known,
            connect,
            trust=trust,
            outage=link.outage,
            interrupts=interrupts,
            clock=clock,
        ),
        token=lambda: load_token(config),
        renewal=renewal,
        interrupts=interrupts,
    )
