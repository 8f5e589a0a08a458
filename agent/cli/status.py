"""The state of a device as lines for people: what concerns the device, then each model."""

from __future__ import annotations

from typing import Any

from wire.console.output import write, write_fields
from wire.console.text import local_time
from wire.durations import format_duration


def write_status(status: dict[str, Any]) -> None:
    """Print a status.

    Args:
        status: As the agent answers.
    """
    models = status.get("models")
    if models is None or len(models) == 1:  # an agent of an earlier version knows one
        write_fields(_head(status) + _model(status) + _tail(status))
        return
    write_fields(_head(status) + _tail(status))
    for model in models:
        write("")
        write_fields([("model", model["model"]), *_model(model | {"revision": None})])


def _head(status: dict[str, Any]) -> list[tuple[str, Any]]:
    return [
        ("device", status["device"]),
        ("controller", _connection(status)),
        ("endpoint", status["endpoint"]),
    ]


def _model(status: dict[str, Any]) -> list[tuple[str, Any]]:
    revision = status.get("revision")
    desired = status["target"] or "no release"
    fields = [
        ("package", status.get("package") or status["release"] or "none"),
        ("variant", f"{status['variant'] or 'none'} ({status['reason'] or 'nothing decided'})"),
        *_workers(status),
        ("policy", policy_text(status["policy"]) + _origin(status)),
        *_sharing(status["policy"]),
        ("levers", _levers(status)),
        ("desired", desired if revision is None else f"revision {revision}, {desired}"),
        ("install", _phase(status)),
    ]
    if status.get("shadow"):  # none of an agent of an earlier version
        fields.append(("shadow", str(status["shadow"])))
    if status.get("captured"):  # none of an agent of an earlier version
        fields.append(("captured", "some requests, sealed for the operator of the fleet"))
    if status["waits_for"]:
        fields.append(("waits for", status["waits_for"]))
    report = status["last_report"]
    if report and report["outcome"] == "failed":
        fault = f"{report['phase']}: {report['detail']} ({report['error_code']})"
        fields.append(("last fault", fault))
    return fields


def _tail(status: dict[str, Any]) -> list[tuple[str, Any]]:
    fields: list[tuple[str, Any]] = []
    if status.get("models") == [] or len(status.get("models") or [0]) > 1:
        fields.append(("desired", f"revision {status['revision']}"))
        fields.append(("models", len(status["models"]) or "none"))
    if status["override_s"]:
        fields.append(
            ("override", f"one install within {format_duration(round(status['override_s']))}")
        )
    fields += [(each["name"], _budget(each)) for each in status.get("budgets", ())]
    if status.get("trust"):  # none of an agent of an earlier version
        fields.append(("trust", _trust(status["trust"])))
    if status["refused"]:
        fields.append(("refused", status["refused"]))
    return fields


def _trust(trust: dict[str, Any]) -> str:
    """Return what metadata the device trusts, and until when."""
    if trust.get("file"):
        return "a trust file: its keys never change, and nothing shows a freeze"
    refused = f"; newer is refused: {trust['refused']}" if trust["refused"] else ""
    if trust["stale"]:
        return f"nothing new is taken: {trust['stale']}{refused}"
    until = local_time(trust["expires_at_s"])
    return f"version {trust['versions']['root']} of the root, fresh until {until}{refused}"


def policy_text(policy: dict[str, Any]) -> str:
    """Return a policy and the limits that it keeps.

    Args:
        policy: The policy as the status has it.
    """
    aims = {name: value for name, value in (policy.get("objective") or {}).items() if value}
    if "battery_until" in aims:
        aims.pop("battery_lasts_s", None)  # the one takes the place of the other
    texts = [f"{name} {f'{v:g}' if isinstance(v, float) else v}" for name, v in aims.items()]
    return f"{policy['kind']} ({', '.join(texts)})" if texts else str(policy["kind"])


def _origin(status: dict[str, Any]) -> str:
    return ", of this device's agent.toml" if status.get("own_policy") else ""


def _workers(status: dict[str, Any]) -> list[tuple[str, Any]]:
    """Return how many workers there are, if more than one are asked for, and what is kept."""
    asked = (status["policy"].get("sharing") or {}).get("workers", 1)
    there, most = status.get("workers"), status.get("processors")
    limit = f": the device has {most} processors" if there == most and there != asked else ""
    fields = [("workers", f"{there} of {asked} asked for{limit}")] if asked > 1 else []
    kept = status.get("kept")
    return fields + ([("kept", f"{kept}, for requests that name it")] if kept else [])


def _sharing(policy: dict[str, Any]) -> list[tuple[str, Any]]:
    """Return what a policy says of sharing the device, if it is not the default."""
    told = [
        f"{name} {str(value).lower() if isinstance(value, bool) else f'{value:g}'}"
        for name, value in (policy.get("sharing") or {}).items()
    ]
    return [("sharing", ", ".join(told))] if told else []


def _levers(status: dict[str, Any]) -> str:
    levers = status.get("levers") or {}  # an agent of an earlier version knows none
    pulled = [
        text
        for text, is_pulled in (
            ("requests are not joined", not levers.get("joins", True)),
            ("deferrable requests wait", levers.get("defer", False)),
            (
                f"sampling {levers.get('sampling_ratio', 1.0):.2f}",
                levers.get("sampling_ratio", 1.0) < 1.0,
            ),
            ("late requests are shed", levers.get("longest_wait_s") is not None),
        )
        if is_pulled
    ]
    waiting = f"; {status['deferred']} deferred" if status.get("deferred") else ""
    if not pulled:
        return f"none{waiting}"
    return f"{', '.join(pulled)} ({'; '.join(levers['reasons'])}){waiting}"


def _phase(status: dict[str, Any]) -> str:
    if not status.get("transfer"):  # an agent of an earlier version knows none
        return str(status["phase"])
    from wire.codec import convert
    from wire.console.progress import done_text, progress_text
    from wire.progress import TransferProgress

    if status.get("waits_for"):
        progress = convert(status["transfer"], TransferProgress)
        return f"{status['phase']} {done_text(progress.done_bytes, progress.total_bytes)}"
    return f"{status['phase']} {progress_text(convert(status['transfer'], TransferProgress))}"


def _connection(status: dict[str, Any]) -> str:
    if status["connected"]:
        return "connected"
    return f"not connected: {status['outage']}" if status["outage"] else "not connected yet"


def _budget(budget: dict[str, Any]) -> str:
    return str(budget["text"] if budget["in_use"] else f"{budget['text']}, not in use")
