"""Which shadow a device runs beside a model: a function of the shadows and the device's values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from controller.domain.attributes import DeviceValues
from controller.domain.selectors import Selector
from controller.errors import InvalidRequestError
from wire.shadow import ShadowRule

MAX_SHADOWS = 100
"""When one changes, all are matched against every device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetShadow:
    """A shadow, and the devices that it is for."""

    selector: Selector
    rule: ShadowRule


def choose_shadow(
    shadows: Iterable[FleetShadow], device: DeviceValues, model: str
) -> ShadowRule | None:
    """Return what a device is to run beside a model; None for nothing.

    Args:
        shadows: The fleet's, one of each model.
        device: Its labels and its steady attributes.
        model: The name of the model.
    """
    return next(
        (
            each.rule
            for each in shadows
            if each.rule.release.name == model and each.selector.matches(device)
        ),
        None,
    )


def check_shadow(rule: ShadowRule) -> None:
    """Refuse a rule that devices would refuse, because that would block releases too.

    Raises:
        InvalidRequestError: It cannot be.
    """
    if faults := rule.faults(rule.release.name):
        raise InvalidRequestError(faults[0], remedy="give a share, such as 0.01")
