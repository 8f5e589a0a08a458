"""Puts what may hold an install before and around its effects: conditions and the operator's hooks.

Rules:
- Only a device with conditions or hooks has the modules in memory that wait for them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from agent.app.config import AgentConfig
from agent.app.fetching import local_time
from agent.install.conditions import Later
from agent.install.installer import Installer
from agent.install.slots import Slots
from agent.install.store import StateStore
from agent.interrupts import Interrupts
from agent.log import Log
from agent.ports import RecorderPort
from wire.clock import Clock
from wire.health import HealthSnapshot

if TYPE_CHECKING:
    from agent.install.budget.budgets import Budgets
    from agent.install.hooks.effects import HookedEffects


def put_hooks(  # noqa: PLR0913 - one parameter for each part that it connects
    config: AgentConfig,
    installer: Installer,
    store: StateStore,
    slots: Slots,
    *,
    log: Log,
    recorder: RecorderPort,
    interrupts: Interrupts,
    health: Callable[[], HealthSnapshot],
    budgets: Budgets | None,
    clock: Clock,
) -> HookedEffects | None:
    """Return the effects of an install with what may hold them.

    Args:
        config: Says when installs may begin, and where the hooks are.
        installer: The effects.
        store: Knows what is being installed.
        slots: Knows where the package is.
        log: Takes a line for each run of a hook.
        recorder: Takes an event when a hook does not just say yes.
        interrupts: Tells when an install must end.
        health: Returns the newest readings.
        budgets: What fetching may cost; None if nothing is bounded.
        clock: For limits and waits.

    Returns:
        The effects with what may hold them; None if nothing can.
    """
    settings = config.hooks
    if settings.directory is None and not config.install.has_conditions and budgets is None:
        return None
    from agent.install.conditions import Conditions
    from agent.install.holding import Holding
    from agent.install.hooks.effects import HookedEffects
    from agent.install.hooks.override import Override
    from agent.install.hooks.runner import HookRunner

    override = Override(recorder, clock)
    if budgets is not None:
        budgets.is_repair = lambda: store.state.repairing
        budgets.is_allowed = lambda: override.covers(store.state.revision)
    holding = Holding(
        store=store,
        events=recorder,
        interrupts=interrupts,
        clock=clock,
        conditions=Conditions(
            config.install,
            store=store,
            is_whole=slots.has,
            health=health,
            now_s=clock.now_s,
            local=local_time,
        ),
        deferral=lambda: _later(budgets),
        is_overridden=lambda: override.covers(store.state.revision),
    )
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
        override=override,
        store=store,
        events=recorder,
        interrupts=interrupts,
        clock=clock,
        holding=holding,
    )


def _later(budgets: Budgets | None) -> Later | None:
    deferral = budgets.deferral() if budgets is not None else None
    return Later(*deferral) if deferral is not None else None
