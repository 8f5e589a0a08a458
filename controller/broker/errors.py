"""What can go wrong with the broker and with the controller's data directory."""

from __future__ import annotations

from wire.errors import FleetError


class BrokerError(FleetError):
    """The MQTT broker cannot be found, run or asked."""

    code = "broker"


class BrokerNotFoundError(BrokerError):
    """Mosquitto or a part of it is not on this machine and cannot be downloaded."""

    code = "broker.not_found"


class BrokerPortError(BrokerError):
    """The broker's port is in use or not ours to use."""

    code = "broker.port"


class BrokerDirectoryError(BrokerError):
    """The broker's directory cannot be written."""

    code = "broker.directory"


class BrokerStartError(BrokerError):
    """The broker ended, or did not accept connections in time."""

    code = "broker.start"


class BrokerAccessError(BrokerError):
    """The broker gave no answer about an account."""

    code = "broker.access"
    retryable = True


class BrokerAccountError(BrokerError):
    """The broker refused a change of an account."""

    code = "broker.account"


class CertificateError(BrokerError):
    """A certificate cannot be made, or clients would refuse it."""

    code = "broker.certificate"


class ClearTextError(BrokerError):
    """Passwords would cross a network in the clear."""

    code = "broker.clear_text"


class HomeError(FleetError):
    """The controller's data directory cannot be made or read."""

    code = "home"


class BackupError(HomeError):
    """A file is not a backup of a controller, or is damaged."""

    code = "home.backup"
