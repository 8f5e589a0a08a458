"""The models of devices, as people read them."""

from __future__ import annotations

from controller.cli.transfers import phase_text, share_text
from controller.schemas import Device, DeviceModel
from wire.console.output import write, write_table


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


def policy_text(device: Device, model: DeviceModel) -> str:
    """Return the policy of a model, and whether the device has accepted it."""
    name = "the default, as no policy matches" if model.policy is None else model.policy
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
        ("variant", model.variant),
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
        ("MODEL", "RELEASE", "VARIANT", "DESIRED", "PHASE", "POLICY", "WAITS FOR", "LAST ERROR"),
        [
            (
                m.name, m.release, m.variant, m.desired_release, share_text(m.phase, m.transfer),
                m.policy or "default", m.waits_for or None, m.last_error or None,
            )
            for m in models
        ],
        minor=("WAITS FOR", "POLICY", "PHASE"),
    )  # fmt: skip
