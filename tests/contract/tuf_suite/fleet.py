"""A plugin of pytest for tuf-conformance: its repositories say what a fleet's metadata must say.

A device refuses metadata without a director, a root without the fleet's name, and a timestamp that
does not say when it was signed. All else stays as the suite makes it.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable

from tuf.api.metadata import DelegatedRole, Delegations, Targets, Timestamp
from tuf_conformance._internal import simulator_server
from tuf_conformance._internal.repository_simulator import RepositorySimulator

from wire.clock import SystemClock
from wire.trust.roles import DIRECTOR, DIRECTOR_PATHS, ED25519, FLEET_FIELD, ISSUED_FIELD


class FleetSimulator(RepositorySimulator):  # type: ignore[misc]  # the suite has no types
    """A repository of the suite that is a fleet's."""

    def publish(self, roles: Iterable[str], verify_version: bool = True) -> None:
        """Sign roles, as the suite does."""
        if not self.signed_mds:
            self.root.unrecognized_fields[FLEET_FIELD] = secrets.token_hex(16)
            role = DelegatedRole(DIRECTOR, [], 1, terminating=True, paths=[DIRECTOR_PATHS])
            self.targets.delegations = Delegations({}, {DIRECTOR: role})
            key = self.new_signer(ED25519, ED25519).public_key
            self.mds[Targets.type].signed.add_key(key, DIRECTOR)
        wanted = list(roles)
        if Timestamp.type in wanted:
            # Also a timestamp that has ended was signed before its end.
            issued_s = min(SystemClock().now_s(), self.timestamp.expires.timestamp())
            self.timestamp.unrecognized_fields[ISSUED_FIELD] = int(issued_s)
        super().publish(wanted, verify_version)


simulator_server.RepositorySimulator = FleetSimulator
