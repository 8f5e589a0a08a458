"""Which policy a model of a device gets: a pure function of the policies and the device's values.

Rules:
- A policy is for one model or for all. If several policies match a model of a device, it gets the
  one with the highest priority; with equal priorities, one that names the model goes first, and
  then the first by name.
- A policy asks for labels and steady attributes alone: when one changes, it is chosen again.
- A model that no policy matches gets the default of `wire.policy.PolicySpec`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from controller.domain.attributes import DeviceValues
from controller.domain.selectors import Selector
from controller.errors import InvalidRequestError
from wire.codec import convert
from wire.errors import WireFormatError
from wire.policy import PolicySpec

MAX_POLICIES = 100
"""When a policy changes, every policy is matched against every device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetPolicy:
    """A policy, the devices that it is for, and its priority."""

    name: str
    selector: Selector
    model: str | None = None
    """The model that it is for; None for all."""

    priority: int
    spec: PolicySpec

    @property
    def rank(self) -> tuple[int, bool, str]:
        """The order of precedence: the policy with the lowest rank applies."""
        return rank(self.priority, self.model, self.name)


def rank(priority: int, model: str | None, name: str) -> tuple[int, bool, str]:
    """Return the order of precedence of a policy."""
    return (-priority, model is None, name)


def choose_policy(
    policies: Iterable[FleetPolicy], device: DeviceValues, model: str
) -> FleetPolicy | None:
    """Return the policy that applies to a model of a device.

    Args:
        policies: The fleet's, in any order; their names differ.
        device: Its labels and its steady attributes.
        model: The name of the model.

    Returns:
        The policy; None for the default one.
    """
    matching = (
        policy
        for policy in policies
        if policy.model in {None, model} and policy.selector.matches(device)
    )
    return min(matching, key=lambda policy: policy.rank, default=None)


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
        raise InvalidRequestError(exc.message, remedy=exc.remedy) from exc
    if faults := spec.faults():
        raise InvalidRequestError(
            f"the policy is not valid: {faults[0]}", remedy="correct that value"
        )
    return spec
