"""The fleet as Python programs see it: one attribute for each kind of thing that the API has."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self

from controller.client.connection import PATIENCE_S, TIMEOUT_S, ApiClient
from controller.client.errors import NoControllerError
from controller.client.target import ConnectionOptions, find_controller
from controller.schemas import Health
from wire.errors import FleetError

if TYPE_CHECKING:
    from controller.client.access import Access, Audit, Tokens
    from controller.client.alerts import Alerts
    from controller.client.captures import Captures
    from controller.client.devices import Devices, Groups
    from controller.client.enrolment import Registrations, Waiting
    from controller.client.measurements import Measurements
    from controller.client.metadata import Metadata
    from controller.client.policies import Policies
    from controller.client.releases import Models, Releases
    from controller.client.rollouts import Rollouts
    from controller.client.shadows import Shadows
    from controller.client.telemetry import SavedQueries, Telemetry


class Fleet(ApiClient):
    """A controller and its fleet.

    It keeps one connection, so it is for one thread at a time. Of `ApiClient` it has `get` and
    `send`, for what has no method here.
    """

    @classmethod
    def connect(
        cls,
        url: str,
        *,
        token_file: Path | str | None = None,
        token: str = "",
        ca_file: Path | str | None = None,
        clear_text: bool = False,
        timeout_s: float = TIMEOUT_S,
        patience_s: float = PATIENCE_S,
    ) -> Self:
        """Return a client of the controller at an address; nothing is sent yet.

        Args:
            url: Such as `https://fleet.example:8470`.
            token_file: File with the API token.
            token: The API token itself, in place of its file.
            ca_file: Authority of the certificate; None for those of the system.
            clear_text: Whether the token may go to another machine without TLS.
            timeout_s: How long an answer may take.
            patience_s: How long a request waits in all for a controller that is busy.

        Raises:
            NoControllerError: The address, the token or the authority cannot be used.
        """
        options = ConnectionOptions(
            url=url,
            token_file=None if token_file is None else Path(token_file),
            ca_file=None if ca_file is None else Path(ca_file),
            api_clear_text=clear_text,
        )
        found = find_controller(options, {"FLEET_TOKEN": token})
        return cls(found, timeout_s=timeout_s, patience_s=patience_s)

    @classmethod
    def from_home(
        cls, home: Path | str, *, timeout_s: float = TIMEOUT_S, patience_s: float = PATIENCE_S
    ) -> Self:
        """Return a client of the controller whose directory is on this machine.

        Args:
            home: The directory.
            timeout_s: How long an answer may take.
            patience_s: How long a request waits in all for a controller that is busy.

        Raises:
            NoControllerError: It is no such directory, or its token cannot be read.
        """
        try:
            found = find_controller(ConnectionOptions(home=Path(home)), {})
        except NoControllerError:
            raise
        except FleetError as exc:
            raise NoControllerError(exc.message, remedy=exc.remedy) from exc
        return cls(found, timeout_s=timeout_s, patience_s=patience_s)

    def health(self) -> Health:
        """Return whether the controller works, and what it lacks."""
        return self.get("/v1/health", Health)

    # Each is imported when it is used: a command needs one or two of them.

    @cached_property
    def access(self) -> Access:
        """API tokens."""
        from controller.client.access import Access

        return Access(self)

    @cached_property
    def alerts(self) -> Alerts:
        """Alerts and their rules."""
        from controller.client.alerts import Alerts

        return Alerts(self)

    @cached_property
    def audit(self) -> Audit:
        """Who did what."""
        from controller.client.access import Audit

        return Audit(self)

    @cached_property
    def captures(self) -> Captures:
        """Samples that devices capture."""
        from controller.client.captures import Captures

        return Captures(self)

    @cached_property
    def devices(self) -> Devices:
        """Devices."""
        from controller.client.devices import Devices

        return Devices(self)

    @cached_property
    def groups(self) -> Groups:
        """Groups of devices."""
        from controller.client.devices import Groups

        return Groups(self)

    @cached_property
    def measurements(self) -> Measurements:
        """Measurements of releases on lent devices."""
        from controller.client.measurements import Measurements

        return Measurements(self)

    @cached_property
    def metadata(self) -> Metadata:
        """Who may sign what."""
        from controller.client.metadata import Metadata

        return Metadata(self)

    @cached_property
    def models(self) -> Models:
        """Models, over all their releases."""
        from controller.client.releases import Models

        return Models(self)

    @cached_property
    def policies(self) -> Policies:
        """How devices choose among their variants."""
        from controller.client.policies import Policies

        return Policies(self)

    @cached_property
    def registrations(self) -> Registrations:
        """Devices that enrol by themselves, by their serial number."""
        from controller.client.enrolment import Registrations

        return Registrations(self)

    @cached_property
    def releases(self) -> Releases:
        """Published packages."""
        from controller.client.releases import Releases

        return Releases(self)

    @cached_property
    def rollouts(self) -> Rollouts:
        """Rollouts."""
        from controller.client.rollouts import Rollouts

        return Rollouts(self)

    @cached_property
    def saved_queries(self) -> SavedQueries:
        """Queries of the telemetry that were saved."""
        from controller.client.telemetry import SavedQueries

        return SavedQueries(self)

    @cached_property
    def shadows(self) -> Shadows:
        """Releases that run beside those that serve."""
        from controller.client.shadows import Shadows

        return Shadows(self)

    @cached_property
    def telemetry(self) -> Telemetry:
        """What devices measured."""
        from controller.client.telemetry import Telemetry

        return Telemetry(self)

    @cached_property
    def tokens(self) -> Tokens:
        """Enrolment tokens."""
        from controller.client.access import Tokens

        return Tokens(self)

    @cached_property
    def waiting(self) -> Waiting:
        """Devices that wait to be let in."""
        from controller.client.enrolment import Waiting

        return Waiting(self)
