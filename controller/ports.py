"""What the controller needs from outside: the accounts of a broker.

Rules:
- Every method may be called again with the same arguments and then changes nothing.
- Calls may wait some seconds for an answer. They come from any thread except the transport's own,
  so an implementation that uses MQTT has a connection of its own.
- If no answer comes, the method raises a retryable `FleetError`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from controller.config import ControllerConfig


class BrokerAccess(Protocol):
    """Decides which accounts may connect to the broker."""

    def allow_enrolment(self, username: str, password: str) -> None:
        """Let holders of an enrolment token ask to be enrolled, and nothing else."""
        ...

    def end_enrolment(self, username: str) -> None:
        """Remove the account of an enrolment token; the account need not exist."""
        ...

    def allow_device(self, device: str, password: str, client_id: str) -> None:
        """Let a device use its own topics.

        Args:
            device: Its identifier, which is its user name.
            password: The secret that it chose.
            client_id: The only client identifier with which the account may connect.
        """
        ...

    def allow_certificate(self, device: str) -> None:
        """Let a device use its own topics by its certificate; no account of it is left."""
        ...

    def restore_device(self, device: str) -> None:
        """Enable a device's account again, with the password that it had."""
        ...

    def refuse_device(self, device: str) -> None:
        """End a device's connections, and let it do nothing by password or certificate."""
        ...

    def refused_devices(self) -> frozenset[str]:
        """Return which devices the broker shuts out."""
        ...

    def close(self) -> None:
        """Release the connection; also after a failure."""
        ...


AccessFactory = Callable[[ControllerConfig], BrokerAccess]
"""Makes the access of a configuration: `controller.app.run.run(config, factory)`."""
