"""The models of devices, as people read them."""

from __future__ import annotations

from typing import Final

from controller.cli.transfers import phase_text, share_text
from controller.device_schemas import Device, DeviceModel
from wire.console.output import remark, write, write_table
from wire.console.text import plain_text

UNLOADED: Final = "none: unloaded or parked"


def models_of(device: Device) -> list[DeviceModel]:
    """Return the models of a device; of one that has none, what is known without a name."""
    if device.models:
        return device.models
    return [
        DeviceModel(
            name="",
            release=device.release,
            variant=device.variant,
            desired_release=device.desired_release,
            drifted=device.drifted,
            policy=device.policy,
            policy_accepted=device.policy_accepted,
            phase=device.phase,
            waits_for=device.waits_for,
            transfer=device.transfer,
        )
    ]


def variant_text(model: DeviceModel) -> str | None:
    """Return the variant that serves a model, or that it is meant to have none."""
    return UNLOADED if model.unloaded else model.variant


def policy_text(device: Device, model: DeviceModel) -> str:
    """Return the policy of a model, and whether the device has accepted it."""
    name = (
        "the default, as no policy of the fleet matches" if model.policy is None else model.policy
    )
    if device.revision == 0:
        return f"{name} (comes with the first release)"
    return f"{name} ({'accepted' if model.policy_accepted else 'not accepted yet'})"


def model_fields(device: Device) -> list[tuple[str, object]]:
    """Return what is shown of a device with one model, or none; nothing of one with several."""
    if len(models_of(device)) > 1:
        return []
    model = models_of(device)[0]
    return [
        ("release", model.release),
        ("variant", variant_text(model)),
        ("desired release", model.desired_release),
        ("drifted", model.drifted),
        ("policy", policy_text(device, model)),
        ("phase", phase_text(model.phase, model.transfer, waits=bool(model.waits_for))),
        *([("waits for", model.waits_for)] if model.waits_for else []),
    ]


def write_models(device: Device) -> None:
    """Write the models of a device that has several, one in a row."""
    models = models_of(device)
    if len(models) < 2:  # noqa: PLR2004 - one is shown with the device itself
        return
    write()
    write_table(
        (
            *("MODEL", "RELEASE", "VARIANT", "DESIRED", "DRIFTED", "PHASE", "POLICY", "ACCEPTED"),
            *("WAITS FOR", "LAST ERROR"),
        ),
        [
            (
                m.name, m.release, variant_text(m), m.desired_release, m.drifted,
                share_text(m.phase, m.transfer), m.policy or "default", m.policy_accepted,
                m.waits_for or None, m.last_error or None,
            )
            for m in models
        ],
        minor=("WAITS FOR", "PHASE", "ACCEPTED", "POLICY"),
    )  # fmt: skip


def tell_unloaded(device: Device) -> None:
    """Say where to see why no variant serves a model that the device has."""
    for model in models_of(device):
        if model.unloaded:
            what, of = plain_text(model.name), f" --model {plain_text(model.name)}"
            remark(
                f"no variant of {what or 'the package'} serves: a client has unloaded it, or it is "
                f"parked; `fleet why {plain_text(device.id)}{of if what else ''} --since 1d` says "
                "which"
            )


def write_attributes(device: Device) -> None:
    """Write what the device reports of itself, as selectors compare it."""
    if device.attributes:
        write()
        write_table(
            ("ATTRIBUTE", "VALUE"),
            [(name, _attribute_text(value)) for name, value in device.attributes.items()],
        )


def _attribute_text(value: str | float | list[str]) -> str:
    if isinstance(value, str):
        return value
    return ",".join(value) if isinstance(value, list) else f"{value:.0f}"
