"""Which policy a device gets: a pure function of the fleet's policies and the device's values.

Rules:
- If a device matches the selectors of several policies, it gets the one with the highest priority;
  with equal priorities, the first by name.
- A device that matches no selector gets the default of `wire.policy.PolicySpec`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from controller.domain.selectors import Selector
from controller.errors import InvalidRequestError
from wire.codec import convert
from wire.errors import WireFormatError
from wire.policy import PolicySpec
from wire.profile import NAME_PATTERN

MAX_POLICIES = 100
"""When a policy changes, every policy is matched against every device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetPolicy:
    """A policy, the devices that it is for, and its priority."""

    name: str
    selector: Selector
    priority: int
    spec: PolicySpec

    @property
    def rank(self) -> tuple[int, str]:
        """The order of precedence: the policy with the lowest rank applies."""
        return (-self.priority, self.name)


def choose_policy(policies: Iterable[FleetPolicy], device: Mapping[str, str]) -> FleetPolicy | None:
    """Return the policy that applies to a device.

    Args:
        policies: The fleet's, in any order; their names differ.
        device: Its labels and its own data under `selectors.OWN_KEYS`.

    Returns:
        The policy; None for the default one.
    """
    matching = (policy for policy in policies if policy.selector.matches(device))
    return min(matching, key=lambda policy: policy.rank, default=None)


def checked_name(name: str) -> str:
    """Return a name that a policy may have.

    Args:
        name: As the operator wrote it.

    Returns:
        The same.

    Raises:
        InvalidRequestError: Empty, too long, or with other characters.
    """
    if NAME_PATTERN.fullmatch(name) is None:
        raise InvalidRequestError(
            f"not a name for a policy: {name[:64]!r}",
            remedy="use 1 to 63 of a-z 0-9 . _ - and begin with a letter or digit",
        )
    return name


def checked_spec(values: Mapping[str, Any]) -> PolicySpec:
    """Return a policy that devices accept; a policy that they refuse would block releases too.

    Args:
        values: Its fields; what is left out has its default.

    Returns:
        The policy.

    Raises:
        InvalidRequestError: The policy is not valid.
    """
    try:
        spec = convert(dict(values), PolicySpec)
    except WireFormatError as exc:
        raise InvalidRequestError(exc.message) from exc
    if faults := spec.faults():
        raise InvalidRequestError(f"the policy is not valid: {faults[0]}")
    return spec
