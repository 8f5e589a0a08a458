"""`fleet why`: what a device decided and why, and what it does in a rollout."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Annotated, Final

import typer

from controller.cli import completion
from controller.cli.arguments import JsonOption, parse_duration
from controller.cli.connecting import connect
from controller.cli.errors import ArgumentError
from controller.cli.explain import part_lines
from controller.cli.named_arguments import DeviceArgument
from controller.cli.output import write_json
from controller.client.fleet import Fleet
from controller.telemetry_schemas import DeviceEvent
from telemetry.reasons import KINDS, reason_lines
from wire.clock import SystemClock
from wire.console.output import remark, write_lines
from wire.console.text import local_time, plain_text

MAX_EVENTS: Final = 1000
"""What the API gives at most."""

SinceOption = Annotated[str, typer.Option(help="How far back, such as 30m or 7d.", metavar="TIME")]
LimitOption = Annotated[
    int, typer.Option(help="Show at most so many events.", metavar="N", min=1, max=MAX_EVENTS)
]
KindOption = Annotated[
    list[str] | None,
    typer.Option(help="Show only this kind, such as switch or install.", metavar="KIND"),
]

ModelOption = Annotated[
    str | None,
    typer.Option(
        help="Show only what is about this model, or about the device as a whole.",
        metavar="NAME",
        autocompletion=completion.models,
    ),
]


def why(
    context: typer.Context,
    device: DeviceArgument,
    model: ModelOption = None,
    since: SinceOption = "1h",
    kind: KindOption = None,
    rollout: Annotated[
        str | None,
        typer.Option(
            metavar="ROLLOUT",
            help="Tell its part in this rollout first.",
            autocompletion=completion.rollouts,
        ),
    ] = None,
    limit: LimitOption = 200,
    as_json: JsonOption = False,
) -> None:
    """Show what a device decided, and why.

    The oldest event comes first.

    Examples:
        fleet why cam-berlin
        fleet why cam-berlin --rollout r-7f3a
        fleet why cam-berlin --model detector
        fleet why cam-berlin --kind switch --since 1d
    """
    with connect(context) as api:
        part = api.rollouts.part(rollout, device) if rollout is not None else None
        ask = partial(fetch_events, api, device, since=since, kinds=kind or [], model=model)
        events, has_more = newest(lambda most: ask(limit=most), limit)
    if has_more:
        tell_more(events, "`fleet telemetry events` with --until {} those before", limit)
    if as_json:
        write_json(events if part is None else {"part": part, "events": events})
        return
    if part is not None:
        write_lines([*part_lines(part), ""])
    for event in events:
        write_lines(reason_lines(event.at_s, event.kind, event.reason, event.data))
    if not events:
        remark(_none_found(device, since, kind or [], model))


def _none_found(device: str, since: str, kinds: list[str], model: str | None) -> str:
    asked = f" of kind {' or '.join(map(plain_text, kinds))}" if kinds else ""
    about = f" about model {plain_text(model)}" if model is not None else ""
    more = "; without --kind all kinds are shown" if kinds else ""
    return f"no events{asked}{about} of {plain_text(device)} within {since}{more}"


def newest(ask: Callable[[int], list[DeviceEvent]], limit: int) -> tuple[list[DeviceEvent], bool]:
    """Return the newest events, and whether there are older ones, as far as the API tells.

    Args:
        ask: Asks for so many, the oldest first.
        limit: The greatest number.
    """
    found = ask(min(limit + 1, MAX_EVENTS))
    return found[-limit:], len(found) > limit or len(found) == MAX_EVENTS


def tell_more(events: Sequence[DeviceEvent], before: str, limit: int) -> None:
    """Say that there are older events than those that are shown, and how to get them.

    Args:
        events: Those that are shown; at least one.
        before: What shows those before a time, with a place for it.
        limit: The greatest number that was asked for.
    """
    more = f"--limit shows up to {MAX_EVENTS}, " if limit < MAX_EVENTS else ""
    sure = "there are more" if more else "there may be more"
    # The time that is shown has no parts of a second: some events come again.
    until = f"'{local_time(math.floor(events[0].at_s) + 1)}'"
    remark(f"{sure}: these are the newest {len(events)}; {more}{before.format(until)}")


def fetch_events(
    api: Fleet,
    device: str,
    *,
    since: str,
    kinds: list[str],
    model: str | None = None,
    limit: int,
) -> list[DeviceEvent]:
    """Ask for a device's events.

    Args:
        api: The controller.
        device: Its identifier.
        since: How far back, as typed.
        kinds: Only these; empty means all.
        model: Only those that are about this model, or about the device as a whole; None for all.
        limit: The greatest number.

    Returns:
        The events, oldest first.

    Raises:
        ArgumentError: There is no event of such a kind.
    """
    since_s = SystemClock().now_s() - parse_duration(since, option="--since")
    events = api.devices.events(device, since_s=since_s, kinds=kinds, model=model, limit=limit)
    check_kinds(kinds, events)
    return events


def check_kinds(kinds: Iterable[str], events: Iterable[DeviceEvent]) -> None:
    """Refuse kinds that neither this version nor an answer knows.

    Args:
        kinds: As they were asked for.
        events: The answer.

    Raises:
        ArgumentError: There is no event of such a kind.
    """
    for kind in sorted({*kinds} - {*KINDS} - {event.kind for event in events}):
        raise ArgumentError(
            f"--kind: there is no kind of events {kind!r}",
            remedy=f"kinds are {', '.join(KINDS)}",
        )
