"""Takes desired states: from the controller while the agent runs, from the disk when it starts.

Rules:
- A desired state that is not signed for this device, or that may be older than the accepted one, is
  refused, and the controller is told why. Only a checked one sets the policy and goes to the
  installs.
- A policy in the device's own configuration takes precedence over the controller's.
"""

from __future__ import annotations

import threading

from agent.app.config import AgentConfig
from agent.app.refusals import Refusals
from agent.install.desired import Known, check_revision, read_desired
from agent.install.installer import Installer
from agent.install.store import StateStore
from agent.install.thread import Installs
from agent.select.adaptation import Adaptation
from telemetry.device.recorder import Recorder
from wire.errors import FleetError
from wire.messages import DesiredState
from wire.policy import changes
from wire.trust.root import TrustRoot


class DesiredStates:
    """Checks desired states and passes them on.

    Args:
        config: Has the device's name, and its own policy if there is one.
        trust: The keys that may sign a desired state.
        boot_id: This start of the agent, as its hello names it.
        store: Keeps the desired state that was accepted last.
        adaptation: Follows the policy.
        installer: Puts the package that served before a restart back into service.
        installs: Installs the release.
        recorder: Takes an event for each change of the policy.
        refusals: Takes what is refused.
    """

    def __init__(  # noqa: PLR0913 - one parameter for each part that it connects
        self,
        config: AgentConfig,
        trust: TrustRoot,
        *,
        boot_id: str,
        store: StateStore,
        adaptation: Adaptation,
        installer: Installer,
        installs: Installs,
        recorder: Recorder,
        refusals: Refusals,
    ) -> None:
        self._config = config
        self._trust = trust
        self._boot_id = boot_id
        self._store = store
        self._adaptation = adaptation
        self._installer = installer
        self._installs = installs
        self._recorder = recorder
        self._refusals = refusals
        self._lock = threading.Lock()

    def receive(self, envelope: bytes) -> bool:
        """Check a desired state, set its policy, and offer its release to the installs.

        Args:
            envelope: The signed form, as received.

        Returns:
            Whether the device must greet: the controller has not heard of this start of the agent,
            and until it has, it takes its reports for late ones of an earlier start.
        """
        is_unheard = False
        try:
            desired = self.read(envelope)
            is_unheard = desired.boot_id != self._boot_id
            self.offer(desired, envelope)
        except FleetError as exc:
            self._refusals.refused(envelope, exc)
            return is_unheard
        self._refusals.accepted()
        return is_unheard

    def read(self, envelope: bytes) -> DesiredState:
        """Verify and read a desired state; see `read_desired`, which raises FleetError."""
        return read_desired(envelope, self._trust, self._config.device)

    def offer(self, desired: DesiredState, envelope: bytes) -> None:
        """Check the revision of a desired state, set its policy, and offer it to the installs.

        Args:
            desired: What `read` returned.
            envelope: The signed form.

        Raises:
            RefusedError: It is older than the accepted one, or may be.
        """
        # One may come over MQTT while the operator hands over another.
        with self._lock:
            check_revision(desired, self._known())
            before, changed = self._adopt(desired)
            if changed:
                reason = f"the controller set another policy: {desired.policy.kind}"
                data = {"before": before, "changed": changed, "revision": desired.revision}
                self._recorder.event("policy", reason, data)
            self._installs.offer(desired, envelope)

    def restore(self) -> tuple[str | None, str | None]:
        """Serve the package that served before a restart, with the same policy and pin.

        Returns:
            The digest of the package and the name of the variant that serve now.
        """
        record = self._store.state
        self._adaptation.pinned = record.pinned
        try:
            if record.desired:
                self._adopt(self.read(record.desired))
        except FleetError as exc:
            # An update may have changed the keys; the package that serves is checked by itself.
            reason = f"cannot use the stored desired state: {exc.message}"
            self._recorder.event("refused", reason, {"code": exc.code})
        try:
            self._installer.restore()
        except FleetError as exc:
            reason = f"no variant serves yet: {exc.message}"
            self._recorder.event("worker", reason, {"code": exc.code})
        return self._adaptation.active()

    def _known(self) -> Known:
        return Known(floor=self._installs.revision, lost=self._store.lost, boot_id=self._boot_id)

    def _adopt(self, desired: DesiredState) -> tuple[dict[str, object], dict[str, object]]:
        """Set the controller's policy, unless this device has its own.

        Returns:
            The settings that changed, as they were and as they are.
        """
        if self._config.policy is not None:
            return {}, {}
        before, self._adaptation.policy = self._adaptation.policy, desired.policy
        return changes(before, desired.policy)
