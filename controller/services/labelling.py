"""Labels of several devices, changed by one order.

Rules:
- All devices of a request are changed, or none.
- A selector means the devices that `fleet device list --selector` shows, whatever their state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from controller.domain.selectors import check_removed, checked_labels
from controller.errors import InvalidRequestError, UnknownDeviceError
from controller.label_schemas import LabelRequest, LabelsChange, RelabelledDevice
from controller.store import acting, device_labels, devices
from controller.store.database import Transaction
from controller.store.groups import read_selector

MAX_AT_ONCE: Final = 10_000
"""Devices of one request. Nobody else writes while their labels are changed."""

MAX_TOLD: Final = 1000


def check(request: LabelRequest) -> None:
    """Refuse a request that asks for nothing, or for what contradicts itself.

    Args:
        request: The request.

    Raises:
        InvalidRequestError: It does, or a name to be removed is that of no label.
    """
    if bool(request.devices) == (request.selector is not None):
        raise InvalidRequestError(
            "name devices or give a selector, one of the two"
            if request.devices
            else "no device is named",
            remedy="give the names of devices, or --selector",
        )
    if not (request.set or request.remove):
        raise InvalidRequestError(
            "no label is to be set or removed", remedy="give KEY=VALUE, or KEY- to remove one"
        )
    if both := sorted(request.set.keys() & set(request.remove)):
        raise InvalidRequestError(
            f"the label {both[0][:64]} is to be set and to be removed", remedy="give one of the two"
        )
    check_removed(request.remove)


def relabel(transaction: Transaction, request: LabelRequest, *, now_s: float) -> LabelsChange:
    """Set and remove labels, or only find out what would change.

    Args:
        transaction: The transaction.
        request: Which devices, and which labels; checked.
        now_s: Wall time.

    Returns:
        What changes.

    Raises:
        InvalidRequestError: Too many devices or none, or one would get labels that no selector can
            name.
        SelectorError: The selector cannot be read.
        UnknownDeviceError: There is no device of such a name.
    """
    asked = _asked(transaction, request, now_s=now_s)
    before = device_labels.locked(transaction, asked)
    if missing := [device for device in asked if device not in before]:
        raise UnknownDeviceError(f"no device {missing[0][:64]!r} is enrolled", remedy=devices.KNOWN)
    after = {device: _after(device, labels, request) for device, labels in before.items()}
    changed = [device for device in asked if before[device] != after[device]]
    if not request.dry_run:
        acting.about(_subject(request, len(changed)))
        device_labels.change(
            transaction,
            {device: before[device] for device in changed},
            {device: after[device] for device in changed},
        )
    return LabelsChange(
        matched=len(asked),
        changed=len(changed),
        devices=[
            RelabelledDevice(
                device=device,
                before=_without(before[device], after[device]),
                after=_without(after[device], before[device]),
            )
            for device in changed[:MAX_TOLD]
        ],
    )


def _asked(transaction: Transaction, request: LabelRequest, *, now_s: float) -> list[str]:
    """Return the devices of a request, sorted.

    Raises:
        InvalidRequestError: Too many or none.
        SelectorError: The selector cannot be read.
    """
    if request.selector is None:
        asked = sorted(set(request.devices))
    else:
        parsed = read_selector(transaction, request.selector, now_s=now_s)
        asked = sorted(devices.chosen(transaction, parsed))
    if not asked:
        raise InvalidRequestError(
            f"no device matches the selector {request.selector!r}",
            remedy="`fleet device list --selector` shows which devices match one",
        )
    if len(asked) > MAX_AT_ONCE:
        raise InvalidRequestError(
            f"{len(asked)} devices are more than {MAX_AT_ONCE}",
            remedy="change fewer at once, with a selector for each part of them",
        )
    return asked


def _after(device: str, labels: Mapping[str, str], request: LabelRequest) -> dict[str, str]:
    """Return the labels that a device gets.

    Raises:
        InvalidRequestError: No selector can name them.
    """
    kept = {key: value for key, value in labels.items() if key not in request.remove}
    try:
        return checked_labels(kept | request.set, kept=labels.keys())
    except InvalidRequestError as exc:
        raise InvalidRequestError(f"{device}: {exc.message}", remedy=exc.remedy) from exc


def _without(labels: Mapping[str, str], others: Mapping[str, str]) -> dict[str, str]:
    """Return the labels that are not among others with the same value."""
    return {key: value for key, value in labels.items() if others.get(key) != value}


def _subject(request: LabelRequest, changed: int) -> str:
    """Return what the audit log says of a request: which labels, of how many devices, and which."""
    words = [f"{key}={value}" for key, value in request.set.items()]
    words += [f"{key}-" for key in request.remove]
    which = ", ".join(request.devices) if request.selector is None else request.selector or "all"
    return f"{' '.join(words)} on {changed} of {which}"
