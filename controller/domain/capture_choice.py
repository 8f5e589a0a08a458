"""What a device captures of a model: a function of the captures and the device's values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from controller.domain.attributes import DeviceValues
from controller.domain.selectors import Selector
from controller.errors import InvalidRequestError
from wire.capture import CaptureRule

MAX_CAPTURES = 100
"""When one changes, all are matched against every device."""

REMEDIES = {
    "public_key": "make a key with `fleet capture key FILE`, and give FILE.pub",
    "share": "give a share, such as 0.01",
    "margin": "give a difference of scores, such as 0.1",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetCapture:
    """A capture, and the devices that it is for."""

    model: str
    selector: Selector
    rule: CaptureRule


def choose_capture(
    captures: Iterable[FleetCapture], device: DeviceValues, model: str
) -> CaptureRule | None:
    """Return what a device is to capture of a model; None for nothing.

    Args:
        captures: The fleet's, one of each model.
        device: Its labels and its steady attributes.
        model: The name of the model.
    """
    return next(
        (each.rule for each in captures if each.model == model and each.selector.matches(device)),
        None,
    )


def check_rule(rule: CaptureRule) -> None:
    """Refuse a rule that devices would refuse, because that would block releases too.

    Raises:
        InvalidRequestError: It cannot be.
    """
    if faults := rule.faults():
        name = faults[0].removeprefix("capture.").partition(" ")[0]
        raise InvalidRequestError(faults[0], remedy=REMEDIES.get(name, "correct that value"))
