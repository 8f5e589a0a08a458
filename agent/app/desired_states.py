"""Takes desired states: from the controller while the agent runs, from the disk when it starts.

Rules:
- A desired state that is not signed for this device, or that may be older than the accepted one, is
  refused, and the controller is told why. Only a checked one sets policies and begins installs.
- It is saved before anything acts on it. One that cannot be saved is not refused: the controller
  sends it again.
- A model that it does not name is removed. A start of the agent does what the last one left.
- A policy in the device's own configuration takes precedence over the controller's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Final, Protocol, TypeVar

import msgspec

from agent.app.config import AgentConfig
from agent.app.models import Model, Models, restore_fault
from agent.app.refusals import Refusals
from agent.errors import NotYetError, StorageError, StorageFullError
from agent.install.desired import Known, check_revision, read_desired
from agent.install.orders import Present, orders
from agent.install.slots import Slots
from agent.install.store import StateStore
from agent.log import Log
from agent.trust.keeper import MetadataTrust
from telemetry.device.recorder import Recorder
from wire.capture import CaptureRule
from wire.clock import Clock
from wire.codec import sha256_hex
from wire.desired import DesiredModels, ModelState
from wire.errors import FleetError, SignatureError
from wire.policy import PolicySpec, changes
from wire.shadow import ShadowRule
from wire.trust.root import Role, Trust

T = TypeVar("T")

DOUBT_S: Final = 20.0
"""How long a desired state that nobody known here has signed is not refused: metadata that knows
him may be on its way."""


class TakeShadows(Protocol):
    """Takes which release runs beside the one that serves."""

    def __call__(self, rules: Mapping[str, ShadowRule], *, has_sources: bool) -> None:
        """Run the shadows of these models, and end all others; returns at once."""
        ...


class DesiredStates:
    """Checks desired states and passes them on.

    Args:
        config: Has the device's name, and its own policy if there is one.
        trust: The keys that may sign a desired state.
        boot_id: This start of the agent, as its hello names it.
        store: Keeps the desired state that was accepted last.
        slots: Has the packages that served before a restart.
        models: Follow the policies and install the releases.
        recorder: Takes an event for each change of a policy.
        refusals: Takes what is refused.
        log: Takes a line when one cannot be saved.
        clock: For how long metadata may be on its way.
        capture: Takes which requests are to be captured, by model.
        shadow: Takes which release runs beside the one that serves, by model, and whether the
            controller has other sources than messages.
    """

    def __init__(  # noqa: PLR0913 - one parameter for each part that it connects
        self,
        config: AgentConfig,
        trust: Trust,
        *,
        boot_id: str,
        store: StateStore,
        slots: Slots,
        models: Models,
        recorder: Recorder,
        refusals: Refusals,
        log: Log,
        clock: Clock,
        capture: Callable[[Mapping[str, CaptureRule]], None] = lambda _rules: None,
        shadow: TakeShadows | None = None,
    ) -> None:
        self._config = config
        self._trust = trust
        self._boot_id = boot_id
        self._store = store
        self._slots = slots
        self._models = models
        self._recorder = recorder
        self._refusals = refusals
        self._log = log
        self._clock = clock
        self._capture = capture
        self._shadow = shadow
        self._doubted = ("", 0.0)
        """The last desired state that nobody known here had signed, and since when."""

        self._unread = b""
        """The stored desired state, while it cannot be used because of who signed it."""

        self._unread_by: Role | None = None
        """Who could sign desired states when that was found."""

        self._lock = threading.Lock()

    def receive(self, envelope: bytes) -> bool:
        """Check a desired state, set its policies, and offer its releases to the installs.

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
        except (StorageError, NotYetError) as exc:
            self._log.write("install-waits", code=exc.code, detail=exc.message)
            if isinstance(exc, NotYetError) and isinstance(self._trust, MetadataTrust):
                self._trust.on_missing()
            return is_unheard
        except FleetError as exc:
            if isinstance(exc, SignatureError) and self._is_doubted(envelope):
                return is_unheard
            self._refusals.refused(envelope, exc)
            return is_unheard
        self._refusals.accepted()
        return is_unheard

    def read(self, envelope: bytes) -> DesiredModels:
        """Verify and read a desired state; see `read_desired`, which raises FleetError."""
        return read_desired(envelope, self._trust, self._config.device)

    def offer(self, desired: DesiredModels, envelope: bytes) -> None:
        """Check the revision of a desired state, save it, and pass it on to the models.

        Args:
            desired: What `read` returned.
            envelope: The signed form.

        Raises:
            RefusedError: It is older than the accepted one, or may be.
            NotYetError: It has expired, or the device lacks metadata that its director knows.
            StorageError: It could not be saved; nothing was changed.
        """
        # One may come over MQTT while the operator hands over another.
        with self._lock:
            check_revision(desired, self._known())
            self._check_time(desired)
            is_again = desired.revision == self._store.state.revision
            self._save(desired, envelope)
            self._take_over(desired, envelope, is_again=is_again)

    def _take_over(self, desired: DesiredModels, envelope: bytes, *, is_again: bool) -> None:
        """Do what a desired state asks for that is stored."""
        self._follow(desired, envelope)
        self._capture(_captures(desired))
        for state in desired.models:
            self._adopt(state, desired.revision, self._told)
        self._pass_on(desired, is_again=is_again)
        self._follow_shadows(desired)  # last: an install may need the package of one that ends

    def restore(self) -> dict[str, tuple[str | None, str | None]]:
        """Serve the packages that served before a restart, and go on with what was desired.

        Returns:
            The digest of the package and the name of the variant that serve each model now.
        """
        record = self._store.state
        desired: DesiredModels | None = None
        try:
            if record.desired:
                desired = self.read(record.desired)
                self._follow(desired, record.desired)
                self._capture(_captures(desired))
        except FleetError as exc:
            # An update may have changed the keys; the package that serves is checked by itself.
            if isinstance(self._trust, MetadataTrust):
                self._trust.doubt(record.desired)
                self._unread, self._unread_by = record.desired, self._trust.director
            reason = f"cannot use the stored desired state: {exc.message}"
            self._recorder.event("refused", reason, {"code": exc.code})
        named = desired.models if desired is not None else ()
        for name in sorted({*record.models, *self._slots.serving(), *(m.name for m in named)}):
            model = self._models.ensure(name)
            model.adaptation.pinned = model.store.state.pinned
            if desired is not None and (state := desired.model(name)) is not None:
                self._adopt(state, desired.revision, _nobody)
            if (fault := restore_fault(model)) is not None:
                reason = f"no variant of model {name} serves yet: {fault.message}"
                self._recorder.event("worker", reason, {"code": fault.code, "model": name})
        if isinstance(self._trust, MetadataTrust):
            self._trust.want(*(model.name for model in self._models))
        if desired is not None and desired.revision == record.revision:
            self._pass_on(desired)
        if desired is not None:
            self._follow_shadows(desired)
        return {model.name: model.adaptation.active() for model in self._models}

    def read_again(self) -> None:
        """Follow the stored desired state after all, once it is known who signed it.

        So it is after another root came with the device: the policies are in it.
        """
        if not self._unread or not isinstance(self._trust, MetadataTrust):
            return
        director = self._trust.director
        if director == self._unread_by:
            return
        self._unread_by = director
        with self._lock:
            envelope = self._unread
            if self._store.state.desired == envelope:
                try:
                    desired = self.read(envelope)
                except FleetError:
                    return  # it is still nobody's
                self._take_over(desired, envelope, is_again=False)
            self._unread = b""

    def _check_time(self, desired: DesiredModels) -> None:
        """Take nothing that has expired, or that is newer than the metadata of this device.

        Raises:
            NotYetError: It is so.
        """
        if not isinstance(self._trust, MetadataTrust):
            return
        why = self._trust.not_timely(_told(desired.expires_at_s), _told(desired.timestamp))
        if why is not None:
            raise NotYetError(why)

    def _follow(self, desired: DesiredModels, envelope: bytes) -> None:
        """Let what is new in a desired state wait for metadata as new as it is."""
        if isinstance(self._trust, MetadataTrust):
            self._trust.follow(
                envelope,
                expires_at_s=_told(desired.expires_at_s),
                timestamp=_told(desired.timestamp),
            )

    def _follow_shadows(self, desired: DesiredModels) -> None:
        """Pass on which release runs beside the one that serves."""
        if self._shadow is not None:
            self._shadow(
                {
                    model.name: model.shadow
                    for model in desired.models
                    if not isinstance(model.shadow, msgspec.UnsetType)
                },
                has_sources=desired.has_sources is True,
            )

    def _is_doubted(self, envelope: bytes) -> bool:
        """Tell whether metadata may be on its way that knows who signed a desired state."""
        if not isinstance(self._trust, MetadataTrust):
            return False
        self._trust.on_missing()
        now_s, digest = self._clock.monotonic_s(), sha256_hex(envelope)
        if self._doubted[0] != digest:
            self._doubted = (digest, now_s)
        return now_s - self._doubted[1] < DOUBT_S

    def _pass_on(self, desired: DesiredModels, *, is_again: bool = False) -> None:
        """Tell the models what is to be done; also what a restart came before."""
        present = {m.name: Present(m.store.state, m.installs.is_leaving) for m in self._models}
        wanted = orders(desired, present, is_again=is_again)
        for state in wanted.installs:
            self._models.offer(state, has_sources=desired.has_sources is True)
        for name in wanted.removals:
            self._models.remove(name)

    def _save(self, desired: DesiredModels, envelope: bytes) -> None:
        state = self._store.state
        wanted = [m.release for m in desired.models] + [r.target for r in state.models.values()]
        needed = {release.digest for release in wanted if release is not None}
        # Where that is not enough, an order goes before a way back.
        for keep in ({*needed, *state.wanted}, needed):
            try:
                self._store.accept(desired.revision, envelope)
            except StorageFullError:
                self._slots.collect({*keep, *self._slots.arriving()}, keep_parts=True)
            else:
                return
        self._store.accept(desired.revision, envelope)

    def _known(self) -> Known:
        return Known(floor=self._store.floor, lost=self._store.lost, boot_id=self._boot_id)

    def _adopt(
        self, state: ModelState, revision: int, tell: Callable[[Model, PolicySpec, int], None]
    ) -> None:
        """Set the controller's policy for a model, unless this device has its own."""
        if self._config.policy is not None:
            return
        model = self._models.ensure(state.name)
        before, model.adaptation.policy = model.adaptation.policy, state.policy
        tell(model, before, revision)

    def _told(self, model: Model, before: PolicySpec, revision: int) -> None:
        policy = model.adaptation.policy
        old, new = changes(before, policy)
        if new:
            reason = f"the controller set another policy: {policy.kind}"
            data = {"before": old, "changed": new, "revision": revision, "model": model.name}
            self._recorder.event("policy", reason, data)


def _captures(desired: DesiredModels) -> dict[str, CaptureRule]:
    """Return which requests are to be captured, by model."""
    return {
        model.name: model.capture
        for model in desired.models
        if not isinstance(model.capture, msgspec.UnsetType)
    }


def _told(value: T | msgspec.UnsetType) -> T | None:
    return None if isinstance(value, msgspec.UnsetType) else value


def _nobody(_model: Model, _before: PolicySpec, _revision: int) -> None:
    """Tell nobody: a restart changes no policy."""
