"""Puts what may hold an install before and around its effects: conditions and the operator's hooks.

Rules:
- Only a device with conditions or hooks has the modules in memory that wait for them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from agent.app.config import AgentConfig
from agent.errors import HookFilesError
from agent.install.conditions import Later
from agent.install.ports import Effects
from agent.install.slots import Slots
from agent.install.store import ModelStore
from agent.interrupts import Interrupts
from agent.log import Log
from agent.ports import RecorderPort
from wire.clock import Clock, local_time
from wire.health import HealthSnapshot

if TYPE_CHECKING:
    from agent.install.budget.budgets import Budgets
    from agent.install.hooks.effects import HookedEffects
    from agent.install.hooks.override import Override


def put_hooks(  # noqa: PLR0913 - one parameter for each part that it connects
    config: AgentConfig,
    installer: Effects,
    store: ModelStore,
    slots: Slots,
    *,
    log: Log,
    recorder: RecorderPort,
    interrupts: Interrupts,
    health: Callable[[], HealthSnapshot],
    budgets: Budgets | None,
    override: Override | None,
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
        override: Whether the operator overrides what holds installs; None if nothing can.
        clock: For limits and waits.

    Returns:
        The effects with what may hold them; None if nothing can.
    """
    settings = config.hooks
    if override is None:
        return None
    from agent.install.conditions import Conditions
    from agent.install.holding import Holding
    from agent.install.hooks.effects import HookedEffects
    from agent.install.hooks.runner import HookRunner

    def begin() -> None:
        if budgets is not None:
            budgets.is_repair = lambda: store.state.repairing
            budgets.is_allowed = lambda: override.covers(store.install)

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
        is_overridden=lambda: override.covers(store.install),
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
        begin=begin,
    )


def make_override(
    config: AgentConfig, budgets: Budgets | None, recorder: RecorderPort, clock: Clock
) -> Override | None:
    """Return what the operator uses to override what holds an install; None if nothing can.

    Args:
        config: Says when installs may begin, and where the hooks are.
        budgets: What fetching may cost; None if nothing is bounded.
        recorder: Takes an event for each order.
        clock: For how long it holds.
    """
    if config.hooks.directory is None and not config.install.has_conditions and budgets is None:
        return None
    from agent.install.hooks.override import Override

    return Override(recorder, clock)


def look_at_hooks(directory: Path | None, recorder: RecorderPort) -> None:
    """Look at the hooks at the start: a fault is told before it stops an install.

    Args:
        directory: Where they are; None if there are none.
        recorder: Takes an event.
    """
    if directory is None:
        return
    from agent.install.hooks.files import read_hooks

    try:
        read_hooks(directory)
    except HookFilesError as exc:
        recorder.event("hook", str(exc), {"code": exc.code})


def _later(budgets: Budgets | None) -> Later | None:
    deferral = budgets.deferral() if budgets is not None else None
    return Later(*deferral) if deferral is not None else None
