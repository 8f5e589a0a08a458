"""The models of the fleet: what there is, and taking one away from devices.

Rules:
- A model is taken away from no device that takes part in a rollout of it.
- A device whose agent has only one model keeps it until it gets another one: such an agent cannot
  remove. The answer names these devices.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from controller.domain.selectors import Selector
from controller.domain.states import ReleaseState
from controller.errors import ConflictError, ControllerError, InvalidRequestError
from controller.model_schemas import Model, ModelRelease, RemovedModel
from controller.services import follow_ups, rollout_checks
from controller.services.director import Director
from controller.store import (
    deployment_changes,
    desired,
    devices,
    free_devices,
    models,
    releases,
)
from controller.store.database import Database, Transaction
from controller.store.deployment_changes import Verdict
from controller.store.groups import read_selector
from wire.clock import Clock
from wire.desired import NAMED_MODELS

MAX_RELEASES = 10_000
_log = logging.getLogger(__name__)


class Models:
    """The models of the fleet.

    Args:
        database: The control state.
        director: Sends desired states to devices.
        clock: Wall time.
    """

    def __init__(self, database: Database, director: Director, clock: Clock) -> None:
        self._database = database
        self._director = director
        self._clock = clock

    def all(self) -> list[Model]:
        """Return the models by name, each with its releases, the newest first.

        Raises:
            DatabaseError: The database does not answer.
        """
        with self._database.reading() as transaction:
            rows = releases.all_releases(transaction, limit=MAX_RELEASES)
            running, wanted = models.running(transaction), models.wanted(transaction)
            unloaded = models.unloaded(transaction)
        names = {row.name for row in rows} | {name for name, _ in running.keys() | wanted.keys()}
        return [
            Model(
                name=name,
                running=_of_model(running, name),
                desired=_of_model(wanted, name),
                unloaded=_of_model(unloaded, name),
                releases=[
                    ModelRelease(
                        release=f"{row.name}:{row.version}",
                        state=ReleaseState(row.state),
                        running=running.get((name, row.digest), 0),
                        desired=wanted.get((name, row.digest), 0),
                        unloaded=unloaded.get((name, row.digest), 0),
                    )
                    for row in rows
                    if row.name == name
                ],
            )
            for name in sorted(names)
        ]

    def check_known(self, *names: str) -> None:
        """Refuse the name of a model that nobody has heard of, such as a misspelt one.

        Args:
            names: The names.

        Raises:
            UnknownModelError: No release has it, and no device.
        """
        with self._database.reading() as transaction:
            models.check_known(transaction, *names)

    def remove(self, model: str, selector: str) -> RemovedModel:
        """Let devices stop serving a model and free its space.

        Args:
            model: Its name.
            selector: Which devices; empty for all.

        Returns:
            How many devices hear of it, and which keep it.

        Raises:
            SelectorError: The selector cannot be read.
            UnknownModelError: No release and no device has it.
            InvalidRequestError: No device matches the selector.
            ConflictError: No such device has it, or one takes part in a rollout of it.
        """
        now_s = self._clock.now_s()
        with self._database.transaction() as transaction:
            parsed = read_selector(transaction, selector, now_s=now_s)
            rollout_checks.check_not_making(transaction, model)
            follow_ups.refuse_busy(free_devices.busy(transaction, model, parsed))
            found = models.having(transaction, model, parsed)
            if not found:
                models.check_released(transaction, model)
                fault = _nobody_has(transaction, model, parsed, selector)
                raise fault
            names = [item.device for item in found]
            desired.remove(transaction, model, names, now_s=now_s)
            verdict = Verdict(
                error_code="controller.removed", detail="the operator took the model away"
            )
            deployment_changes.end_waiting(transaction, model, names, verdict, now_s=now_s)
        self._director.publish(names)
        kept = [item.device for item in found if item.form < NAMED_MODELS]
        _log.info("model %s is taken away from %s devices", model, len(names))
        return RemovedModel(model=model, devices=len(names), kept=kept)


def _nobody_has(
    transaction: Transaction, model: str, parsed: Selector, selector: str
) -> ControllerError:
    """Return why a model is taken away from no device."""
    if not devices.is_any(transaction, parsed):
        which = f" matches the selector {selector!r}" if selector else " is enrolled"
        return InvalidRequestError(
            f"no device{which}", remedy="`fleet device list` shows the devices and their labels"
        )
    which = f" that matches the selector {selector!r}" if selector else ""
    return ConflictError(
        f"no device{which} has model {model}, or is to run it",
        remedy="`fleet device list` shows which device has which model",
    )


def _of_model(counts: Mapping[tuple[str, str | None], int], name: str) -> int:
    return sum(count for (model, _), count in counts.items() if model == name)
