"""Puts the operator's hooks around the effects of an install.

Rules:
- Only a device with hooks has the modules in memory that run them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.app.config import AgentConfig
from agent.install.installer import Installer
from agent.install.slots import Slots
from agent.install.store import StateStore
from agent.interrupts import Interrupts
from agent.log import Log
from agent.ports import RecorderPort
from wire.clock import Clock

if TYPE_CHECKING:
    from agent.install.hooks.effects import HookedEffects


def put_hooks(
    config: AgentConfig,
    installer: Installer,
    store: StateStore,
    slots: Slots,
    *,
    log: Log,
    recorder: RecorderPort,
    interrupts: Interrupts,
    clock: Clock,
) -> HookedEffects | None:
    """Return the effects of an install with the hooks around them.

    Args:
        config: Says where the hooks are.
        installer: The effects.
        store: Knows what is being installed.
        slots: Knows where the package is.
        log: Takes a line for each run of a hook.
        recorder: Takes an event when a hook does not just say yes.
        interrupts: Tells when an install must end.
        clock: For limits and waits.

    Returns:
        The effects with their hooks; None if there is no directory of hooks.
    """
    settings = config.hooks
    if settings.directory is None:
        return None
    from agent.install.hooks.effects import HookedEffects
    from agent.install.hooks.override import Override
    from agent.install.hooks.runner import HookRunner

    return HookedEffects(
        installer,
        runner=HookRunner(
            settings,
            config.device,
            store=store,
            slots=slots,
            interrupts=interrupts,
            log=log,
            clock=clock,
        ),
        settings=settings,
        override=Override(recorder, clock),
        store=store,
        events=recorder,
        interrupts=interrupts,
        clock=clock,
    )
