"""A rollout as a person writes it, in a file or a program: its keys are the words of the options.

    request = rollout_file("rollout.toml")
    request = rollout_request(release="detector:1.1.0", stages=[1, "10%", "100%"], soak="30m")

Rules:
- What would have no effect is a fault: a key that is misspelt, a value of the wrong kind.
- A fault is one line that names the file and the key; then nothing begins.
- What a file leaves out has the default of the option.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from controller.client.errors import ArgumentError
from controller.client.rollout_keys import control_of
from controller.client.rollout_stages import stage_of
from controller.client.rollout_words import LIMITS, MAX_CONTROL_PERCENT, RolloutFile, option_of
from controller.client.words import parse_agreement, parse_duration, parse_percent
from controller.domain.gates.language import parse_gate
from controller.domain.selectors import parse_selector
from controller.errors import ControllerError
from controller.rollout_schemas import RolloutRequest
from controller.stage_schemas import MAX_WAIT_S, Rate, Stage
from wire.codec import convert, from_toml
from wire.errors import WireFormatError
from wire.files import open_file
from wire.settings_faults import no_such_setting, plain_fault
from wire.windows import window_faults

MAX_FILE_BYTES: Final = 64 * 1024
MAX_FAULT_CHARS: Final = 400
_RELEASE: Final = 'write release = "NAME:VERSION"'
REMEDY: Final = "docs/rollouts.md lists the keys and their limits"


def rollout_file(path: Path | str) -> RolloutRequest:
    """Return the rollout of a TOML file, as `fleet rollout create -f` reads it.

    Args:
        path: Where it is; docs/rollouts.md lists its keys.

    Returns:
        The request, for `fleet.rollouts.plan` and `create`.

    Raises:
        ArgumentError: It cannot be read, a key or a value cannot be, or no release is named.
    """
    request = request_of(read_file(Path(path)))
    if not request.release:
        raise ArgumentError(f"{path}: no release is named", remedy=_RELEASE)
    return request


def rollout_request(**words: object) -> RolloutRequest:
    """Return a rollout of the words of the file, such as `stages=[1, "100%"]` and `soak="30m"`.

    Args:
        words: The keys of docs/rollouts.md and their values.

    Returns:
        The request, for `fleet.rollouts.plan` and `create`.

    Raises:
        ArgumentError: A key or a value cannot be, or no release is named.
    """
    request = request_of(spec_of(words, "rollout_request"))
    if not request.release:
        raise ArgumentError("rollout_request: no release is named", remedy=_RELEASE)
    return request


def check_stages(request: RolloutRequest) -> None:
    """Refuse stages in the words of the file where the request has them as they are sent.

    Raises:
        ArgumentError: There is such a stage.
    """
    for number, stage in enumerate(request.stages):
        if not isinstance(stage, Stage):
            raise ArgumentError(
                f"stages[{number}] is {repr(stage)[:64]}, no Stage",
                remedy="make the request with rollout_request, which takes the words of the file, "
                "or give such as Stage(count=1) or Stage(percent=100)",
            )


def read_file(path: Path) -> RolloutFile:
    """Read the file of a rollout.

    Args:
        path: Where it is.

    Raises:
        ArgumentError: It cannot be read, or holds something else.
    """
    try:
        with open_file(path) as file:
            return read_rollout_file(file.read(MAX_FILE_BYTES + 1), str(path))
    except OSError as exc:
        reason = (exc.strerror or str(exc)).lower()
        raise ArgumentError(f"cannot read {path}: {reason}", remedy="check the path") from exc


def read_rollout_file(data: bytes, name: str) -> RolloutFile:
    """Read a rollout.

    Args:
        data: TOML.
        name: The file, for a fault.

    Returns:
        What it holds; every value can be.

    Raises:
        ArgumentError: It is not TOML or too long, or a key or a value cannot be.
    """
    try:
        values = from_toml(data, dict, limit_bytes=MAX_FILE_BYTES)
    except WireFormatError as exc:
        fault = f"not TOML: {exc.message.removeprefix('not a valid dict: ')}"
        error = _faulty(name, fault, "write the keys of docs/rollouts.md in TOML")
        raise error from exc
    return spec_of(values, name)


def spec_of(values: Mapping[str, object], name: str) -> RolloutFile:
    """Return a rollout of its keys.

    Args:
        values: The keys and their values.
        name: Where they stand, for a fault.

    Returns:
        What they say; every value can be.

    Raises:
        ArgumentError: A key or a value cannot be.
    """
    for key in values:
        if key not in RolloutFile.__struct_fields__:
            error = _faulty(name, no_such_setting(key[:64], RolloutFile), REMEDY)
            raise error
    try:
        spec = convert(values, RolloutFile)
    except WireFormatError as exc:
        error = _faulty(name, _fault(exc.message, values), REMEDY)
        raise error from exc
    request = request_of(spec, called=lambda key: f"{name}: {key}")
    for key in _beyond(request):
        error = _faulty(name, _not_within(key, values), REMEDY)
        raise error
    if faults := window_faults(spec.windows):
        error = _faulty(name, f"windows: {faults[0]}", REMEDY)
        raise error
    try:
        parse_selector(spec.selector)
    except ControllerError as exc:
        error = _faulty(name, f"selector: {exc.message}", exc.remedy)
        raise error from exc
    for gate in spec.gates:
        try:
            parse_gate(gate)
        except ControllerError as exc:
            error = _faulty(name, f"gates: {exc.message}", exc.remedy)
            raise error from exc
    return spec


def check_options(given: Mapping[str, object], request: RolloutRequest) -> None:
    """Refuse options beyond their limits, in the words of the line.

    Args:
        given: What stands on the line, with the keys of the file.
        request: The request that was made of it, and of a file.

    Raises:
        ArgumentError: There is such an option.
    """
    for key in given.keys() & LIMITS.keys():
        try:
            convert({key: given[key]}, RolloutFile)
            is_wrong = key in _beyond(request)
        except WireFormatError:
            is_wrong = True
        if is_wrong:
            raise ArgumentError(
                f"{option_of(key)} must be {LIMITS[key]}, not {repr(given[key])[:64]}",
                remedy="`fleet rollout create --help` says what it is for",
            )


def _beyond(request: RolloutRequest) -> list[str]:
    """Return the keys whose values are read and beyond their limits."""
    found = {
        "control": request.control_percent > MAX_CONTROL_PERCENT,
        "shadow_agreement": request.shadow_agreement_percent == 0,
        "soak": request.soak_s > MAX_WAIT_S,
        "deadline": not 0 < request.device_deadline_s <= MAX_WAIT_S,
        "offline_limit": request.offline_limit_s > MAX_WAIT_S,
    }
    return [key for key, is_wrong in found.items() if is_wrong]


def request_of(spec: RolloutFile, *, called: Callable[[str], str] = option_of) -> RolloutRequest:
    """Return the request for a rollout.

    Args:
        spec: What the file and the options say together.
        called: What a key is called where its value was given, for a fault.

    Returns:
        The request; its release is empty if none is named.

    Raises:
        ArgumentError: A value cannot be read.
    """
    stages = [
        stage_of(words, called=called(f"stages[{number}]"))
        for number, words in enumerate(spec.stages)
    ]
    percent = spec.max_failure_percent
    agreement = spec.shadow_agreement
    control = spec.control if isinstance(spec.control, str) else f"{spec.control:g}"
    return RolloutRequest(
        release=spec.release if isinstance(spec.release, str) else "",
        selector=spec.selector,
        stages=stages,
        spread=spec.spread,
        rate=_rate(spec, called),
        soak_s=parse_duration(spec.soak, option=called("soak")),
        device_deadline_s=parse_duration(spec.deadline, option=called("deadline")),
        offline_limit_s=parse_duration(spec.offline_limit, option=called("offline_limit")),
        max_in_flight=spec.max_in_flight,
        max_failures=spec.max_failures,
        max_failure_percent=percent if isinstance(percent, float) else None,
        min_finished=spec.min_finished,
        approval=spec.approval,
        gates=spec.gates,
        control_percent=parse_percent(control, option=called("control")),
        **control_of(spec),
        shadow_agreement_percent=None
        if isinstance(agreement, msgspec.UnsetType)
        else parse_agreement(str(agreement), option=called("shadow_agreement")),
        unfit=None if spec.unfit == "refuse" else spec.unfit,
    )


def _rate(spec: RolloutFile, called: Callable[[str], str]) -> Rate | None:
    """Return the rate of a rollout; None for none.

    Raises:
        ArgumentError: It is said how a rate grows that does not grow, or that there is not.
    """
    for key, of in (
        ("rate_factor", "rate"),
        ("rate_after", "rate_factor"),
        ("rate_max", "rate_factor"),
    ):
        if getattr(spec, key) is not msgspec.UNSET and getattr(spec, of) is msgspec.UNSET:
            raise ArgumentError(
                f"{called(key)} says nothing without {of}", remedy=f"give {of}, or leave it out"
            )
    if not isinstance(spec.rate, float):
        return None
    rate = Rate(per_minute=spec.rate)
    if isinstance(spec.rate_factor, float):
        rate.factor = spec.rate_factor
    if isinstance(spec.rate_after, int):
        rate.after = spec.rate_after
    if isinstance(spec.rate_max, float):
        rate.max_per_minute = spec.rate_max
    return rate


def _fault(message: str, values: Mapping[str, Any]) -> str:
    fault = plain_fault(message, RolloutFile)
    key = fault.partition(":")[0].partition("[")[0]
    if " must be " in fault or key not in LIMITS:
        return fault
    return _not_within(key, values)


def _not_within(key: str, values: Mapping[str, Any]) -> str:
    return f"{key} must be {LIMITS[key]}, not {repr(values.get(key))[:64]}"


def _faulty(name: str, fault: str, remedy: str) -> ArgumentError:
    return ArgumentError(f"{name}: {fault[:MAX_FAULT_CHARS]}", remedy=remedy)
