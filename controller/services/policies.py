"""The fleet's policies: what the operator sets, and how it reaches the desired states.

Rules:
- Setting or removing a policy only saves the change. Each tick then gives some devices the policy
  that now applies to them, in one transaction, until all have it. This works for any number of
  devices, and a controller that is killed continues after its restart.
- Desired states are published after the transaction. A message may be lost;
  `controller.services.director` repeats it.
"""

from __future__ import annotations

import logging

from controller.domain.device_groups import check_steady
from controller.domain.names import checked_name
from controller.domain.policy_choice import checked_spec
from controller.domain.selectors import parse_selector
from controller.policy_schemas import Policy, PolicyRequest
from controller.schemas import given_fields
from controller.services.director import Director
from controller.store import desired, groups, models, policies, policy_choices
from controller.store.database import Database
from controller.store.policies import Reach
from controller.store.policy_tables import PolicyRow
from wire.clock import Clock
from wire.codec import convert, to_builtins

MAX_CHOSEN = 1000
"""The greatest number of devices that one tick gives another policy."""

_log = logging.getLogger(__name__)


class Policies:
    """The policies of the fleet.

    Args:
        database: The control state.
        director: Sends desired states to devices.
        clock: Wall time.
    """

    def __init__(self, database: Database, director: Director, clock: Clock) -> None:
        self._database = database
        self._director = director
        self._clock = clock

    def all(self) -> list[Policy]:
        """Return the policies in the order of precedence.

        Raises:
            DatabaseError: The database does not answer.
        """
        with self._database.reading() as transaction:
            reach = policies.reach(transaction)
            return [_to_schema(row, reach) for row in policies.all_rows(transaction)]

    def get(self, name: str) -> Policy:
        """Return a policy.

        Args:
            name: Its name.

        Returns:
            The policy and how many devices have it.

        Raises:
            InvalidRequestError: No policy can have that name.
            UnknownPolicyError: There is none of that name.
        """
        with self._database.reading() as transaction:
            row = policies.get(transaction, checked_name(name, "a policy"))
            return _to_schema(row, policies.reach(transaction))

    def put(self, name: str, request: PolicyRequest) -> Policy:
        """Make a policy or replace the one of that name; repeating the call changes nothing.

        Args:
            name: Its name.
            request: The selector, the priority and the settings.

        Returns:
            The policy after the change.

        Raises:
            InvalidRequestError: The name or the policy is not valid.
            SelectorError: The selector cannot be read.
            UnknownModelError: There is no release of the model that it is for.
            ConflictError: There are too many policies.
        """
        selector = parse_selector(request.selector)
        spec = checked_spec(given_fields(request.policy))
        row = PolicyRow(
            name=checked_name(name, "a policy"),
            selector=request.selector,
            model=request.model,
            priority=request.priority,
            spec=to_builtins(spec),
            changed_at_s=self._clock.now_s(),
        )
        with self._database.transaction() as transaction:
            policies.lock(transaction)
            check_steady(selector, groups.texts_for(transaction, [request.selector]), "a policy")
            if request.model is not None:
                models.check_released(transaction, request.model)
            is_new = policies.put(transaction, row)
        if is_new:
            _log.info("policy %s is set: %s for %r", name, spec.kind, request.selector)
        return self.get(name)

    def remove(self, name: str) -> Policy:
        """Remove a policy; its devices get the policy that then applies to them.

        Args:
            name: Its name.

        Returns:
            The policy as it was.

        Raises:
            InvalidRequestError: No policy can have that name.
            UnknownPolicyError: There is none of that name.
        """
        with self._database.transaction() as transaction:
            row = policies.get(transaction, checked_name(name, "a policy"))
            removed = _to_schema(row, policies.reach(transaction))
            policies.remove(transaction, name)
        _log.info("policy %s is removed", name)
        return removed

    def apply(self) -> None:
        """Give devices the policy that now applies to them, and send it to those that are online.

        Raises:
            DatabaseError: The database does not answer.
        """
        with self._database.reading() as transaction:
            stale = policy_choices.with_stale(transaction, limit=MAX_CHOSEN)
        if not stale:
            return
        now_s = self._clock.now_s()
        with self._database.transaction() as transaction:
            told = desired.choose_policies_again(transaction, stale, now_s=now_s)
        self._director.publish(told)


def _to_schema(row: PolicyRow, reach: dict[str, Reach]) -> Policy:
    so_far = reach.get(row.name, Reach())
    return convert(
        {
            "name": row.name,
            "selector": row.selector,
            "model": row.model,
            "priority": row.priority,
            "policy": row.spec,
            "changed_at_s": row.changed_at_s,
            "devices": so_far.devices,
            "accepted": so_far.accepted,
        },
        Policy,
    )
