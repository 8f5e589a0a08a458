"""Takes desired states: from the controller while the agent runs, from the disk when it starts.

Rules:
- A desired state that is not signed for this device, or is older than the accepted one, is refused
  with a reason. Only a checked one sets the policy and goes to the installs.
- A policy in the device's own configuration takes precedence over the controller's.
"""

from __future__ import annotations

from agent.app.config import AgentConfig
from agent.install.desired import check_revision, read_desired
from agent.install.installer import Installer
from agent.install.store import StateStore
from agent.install.thread import Installs
from agent.log import Log
from agent.select.adaptation import Adaptation
from telemetry.device.recorder import Recorder
from wire.codec import to_builtins
from wire.errors import FleetError
from wire.messages import DesiredState, PolicySpec
from wire.trust.root import TrustRoot


class DesiredStates:
    """Checks desired states and passes them on.

    Args:
        config: Has the device's name, and its own policy if there is one.
        trust: The keys that may sign a desired state.
        store: Keeps the desired state that was accepted last.
        adaptation: Follows the policy.
        installer: Puts the package that served before a restart back into service.
        installs: Installs the release.
        recorder: Takes an event for each refusal and each change of the policy.
        log: Takes a line for each desired state.
    """

    def __init__(
        self,
        config: AgentConfig,
        trust: TrustRoot,
        *,
        store: StateStore,
        adaptation: Adaptation,
        installer: Installer,
        installs: Installs,
        recorder: Recorder,
        log: Log,
    ) -> None:
        self._config = config
        self._trust = trust
        self._store = store
        self._adaptation = adaptation
        self._installer = installer
        self._installs = installs
        self._recorder = recorder
        self._log = log

    def receive(self, envelope: bytes) -> bool:
        """Check a desired state, set its policy, and offer its release to the installs.

        Args:
            envelope: The signed form, as received.

        Returns:
            Whether the device has accepted it before: the controller repeats it because it has not
            heard how that ended.
        """
        try:
            desired = read_desired(envelope, self._trust, self._config.device)
            check_revision(desired, self._installs.revision)
        except FleetError as exc:
            what = {"code": exc.code, "what": "desired state"}
            self._recorder.event("refused", exc.message, what)
            return False
        is_repeated = desired.revision == self._installs.revision
        self._log.write("desired", revision=desired.revision, rollout=desired.rollout)
        changed = self._adopt(desired)
        if changed:
            reason = f"the controller set another policy: {desired.policy.kind}"
            data = {"changed": changed, "revision": desired.revision}
            self._recorder.event("policy", reason, data)
        self._installs.offer(desired, envelope)
        return is_repeated

    def restore(self) -> tuple[str | None, str | None]:
        """Serve the package that served before a restart, with the same policy and pin.

        Returns:
            The digest of the package and the name of the variant that serve now.
        """
        record = self._store.state
        self._adaptation.pinned = record.pinned
        try:
            if record.desired:
                self._adopt(read_desired(record.desired, self._trust, self._config.device))
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

    def _adopt(self, desired: DesiredState) -> dict[str, object]:
        """Set the controller's policy, unless this device has its own; return what changed."""
        if self._config.policy is not None:
            return {}
        before, self._adaptation.policy = self._adaptation.policy, desired.policy
        old, new = _settings(before), _settings(desired.policy)
        return {key: value for key, value in new.items() if value != old[key]}


def _settings(policy: PolicySpec) -> dict[str, object]:
    """Return all settings of a policy, including those of the default objective."""
    plain: dict[str, object] = to_builtins(policy)
    plain.pop("objective", None)
    aim = to_builtins(policy.aim)
    return plain | {f"objective.{key}": value for key, value in aim.items()}
