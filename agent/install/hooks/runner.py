"""Runs single hooks: which there are, what they get, what is logged of them.

Rules:
- A hook gets only the variables of `_environment`; none of them is a secret.
- The directory is read and checked again each time that somebody asks for hooks.
"""

from __future__ import annotations

import os
from typing import Final

from agent.errors import HookFilesError
from agent.install.hooks.files import read_hooks
from agent.install.hooks.names import Hook, Moment, hooks_of
from agent.install.hooks.process import Ran, run
from agent.install.hooks.settings import HookSettings
from agent.install.slots import Slots
from agent.install.states import State
from agent.install.store import ModelStore
from agent.interrupts import Interrupts
from agent.log import Log
from wire.clock import Clock

KEPT_ENVIRONMENT: Final = ("PATH", "HOME", "LANG", "TZ")


class HookRunner:
    """The hooks of this device.

    Args:
        settings: Where they are, and how long one may run.
        device: This device.
        store: Knows what is being installed.
        slots: Knows where the package is.
        interrupts: Ends a hook when the agent stops.
        log: Takes a line for each run.
        clock: For the limit.
    """

    def __init__(
        self,
        settings: HookSettings,
        device: str,
        *,
        store: ModelStore,
        slots: Slots,
        interrupts: Interrupts,
        log: Log,
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._device = device
        self._store = store
        self._slots = slots
        self._interrupts = interrupts
        self._log = log
        self._clock = clock

    def all(self) -> tuple[Hook, ...]:
        """Return all hooks; raises HookFilesError if they cannot be trusted."""
        directory = self._settings.directory
        return () if directory is None else read_hooks(directory)

    def of(self, state: State, moment: Moment) -> tuple[Hook, ...]:
        """Return the hooks of a moment, in order; raises HookFilesError as `all` does."""
        return hooks_of(self.all(), state, moment)

    def run(self, hook: Hook) -> Ran:
        """Run a hook.

        Args:
            hook: The hook.

        Returns:
            How it ended.

        Raises:
            HookFilesError: There is no directory of hooks.
            StoppedError: The agent is being stopped; the hook has been killed.
        """
        if self._settings.directory is None:
            raise HookFilesError("no directory of hooks is set")
        began_s = self._clock.monotonic_s()
        ran = run(
            self._settings.directory / hook.name,
            self._environment(hook),
            timeout_s=self._settings.timeout_s,
            clock=self._clock,
            check=lambda: self._interrupts.check(abandon=False),
        )
        took_s = round(self._clock.monotonic_s() - began_s, 3)
        self._log.write("hook-ran", hook=hook.name, took_s=took_s, ended=ran.why, output=ran.output)
        return ran

    def _environment(self, hook: Hook) -> dict[str, str]:
        record = self._store.state
        target, failure = record.target, record.failure
        values = {
            "DEVICE": self._device,
            "STATE": hook.state.value,
            "MOMENT": hook.moment.value.lower(),
            "REVISION": str(record.revision),
            "RELEASE": target.name if target else "",
            "VERSION": target.version if target else "",
            "DIGEST": target.digest if target else "",
            "PACKAGE": str(self._slots.directory(target.digest)) if target else "",
            "REPAIR": "yes" if record.repairing else "no",
            "ERROR_CODE": failure.code if failure else "",
            "ERROR": failure.detail.replace("\0", "?") if failure else "",
        }
        kept = {name: os.environ[name] for name in KEPT_ENVIRONMENT if name in os.environ}
        return kept | {f"EDGEFLEET_{name}": value for name, value in values.items()}
