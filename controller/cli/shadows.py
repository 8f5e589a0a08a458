"""`fleet shadow ...`: a release that runs beside the one that serves, and is compared with it."""

from __future__ import annotations

from typing import Annotated

import typer

from controller.cli import completion
from controller.cli.arguments import JsonOption, parse_percent, selected
from controller.cli.commands import Commands, add_group
from controller.cli.connecting import connect
from controller.cli.errors import ArgumentError
from controller.cli.hints import about_selector
from controller.cli.lists import time_heading, write_list
from controller.cli.output import write_json
from controller.client.fleet import Fleet
from controller.shadow_schemas import Shadow, ShadowFigures, ShadowRequest
from wire.console.output import remark, table_lines, write, write_exact, write_fields
from wire.console.text import local_time, plain_text, value_text

COLUMNS = (
    "PROFILE", "DEVICES", "REQUESTS", "AGREE", "FAIL", "P50 MS", "LIVE P50", "P95 MS", "LIVE P95",
    "DIFFERENCE", "SKIPPED",
)  # fmt: skip

ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help="Name of the model.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    commands: Commands = {
        "start": shadow_start,
        "list": shadow_list,
        "show": shadow_show,
        "stop": shadow_stop,
    }
    add_group(app, "shadow", "Run a release beside the one that serves.", commands)


def shadow_start(
    context: typer.Context,
    release: Annotated[
        str,
        typer.Argument(
            metavar="RELEASE",
            help="Digest or NAME:VERSION of the release.",
            autocompletion=completion.releases,
        ),
    ],
    selector: Annotated[
        str,
        typer.Option(
            help="The devices that it is for. The default is all devices.",
            metavar="SELECTOR",
            autocompletion=completion.selectors,
        ),
    ] = "",
    share: Annotated[
        str, typer.Option(help="Share of the answered requests that it sees.", metavar="PERCENT")
    ] = "1%",
    as_json: JsonOption = False,
) -> None:
    """Let devices run a release as the shadow of the one that serves its model.

    It sees a share of the requests after they have been answered. Nothing that it answers reaches a
    client. It runs only while the device is neither hot nor loaded, has memory for it, and installs
    nothing. A model has one shadow: a new start takes the place of the one before.

    Examples:
        fleet shadow start detector:1.1.0 --selector site=berlin
        fleet shadow start detector:1.1.0 --share 5%
    """  # noqa: DOC501 - is the help text
    percent = parse_percent(share, option="--share")
    if percent == 0:
        raise ArgumentError("--share: a shadow sees more than nothing", remedy="give 1% or so")
    with connect(context) as api:
        found = api.releases.get(release)
        request = ShadowRequest(release=found.digest, selector=selector, share=percent / 100)
        shadow = api.shadows.start(found.name, request)
        hints = _about_devices(api, selector)
    if as_json:
        write_json(shadow)
        return
    whom = plain_text(selected(shadow.selector))
    write(f"{plain_text(shadow.release)} is the shadow, {whom}: {_share(shadow)} of the requests")
    if hints:
        remark(f"warning: {'; '.join(hints)}")
        return
    remark("devices that are online begin when they have its package, the others when they connect")


def shadow_list(context: typer.Context, as_json: JsonOption = False) -> None:
    """List the releases that run beside those that serve.

    Examples:
        fleet shadow list
    """
    with connect(context) as api:
        found = api.shadows.list()
    if as_json:
        write_json(found)
        return
    started = time_heading("STARTED", (each.started_at_s for each in found))
    write_list(
        ("MODEL", "SHADOW", "SHARE", "SELECTOR", "ROLLOUT", "DEVICES", "ACCEPTED", started),
        [
            (
                each.model,
                each.release,
                _share(each),
                selected(each.selector),
                each.rollout,
                each.devices,
                each.accepted,
                local_time(each.started_at_s),
            )
            for each in found
        ],
        none="no shadows; `fleet shadow start` begins one",
        minor=(started, "ACCEPTED"),
    )


def shadow_show(context: typer.Context, model: ModelArgument, as_json: JsonOption = False) -> None:
    """Show how the shadow of a model answers, beside the release that serves.

    AGREE is the share of the requests that both answer alike: the same class for every sample, or,
    where a model tells no classes apart, numbers within the tolerance of the golden test. Times are
    those in the runtime, for the same requests. DIFFERENCE is the greatest of any number. SKIPPED
    are requests that were chosen and not compared.

    Examples:
        fleet shadow show detector
    """
    with connect(context) as api:
        found = api.shadows.get(model)
    if as_json:
        write_json(found)
        return
    shadow = found.shadow
    write_fields(
        (
            ("shadow", plain_text(shadow.release)),
            ("devices", f"{shadow.devices} of {plain_text(selected(shadow.selector))}"),
            ("accepted", str(shadow.accepted)),
            ("share", _share(shadow)),
            ("since", local_time(shadow.started_at_s)),
            *([("for rollout", shadow.rollout)] if shadow.rollout else []),
        )
    )
    write()
    if not found.profiles:
        write("no device has told of it yet")
        return
    rows = [_row(each) for each in found.profiles]
    for line in table_lines(COLUMNS, rows, right=COLUMNS[1:10]).lines:
        write_exact(line)


def shadow_stop(context: typer.Context, model: ModelArgument) -> None:
    """End the shadow of a model; devices remove its package.

    One that a rollout started ends with the wait of its stage.

    Examples:
        fleet shadow stop detector
    """
    with connect(context) as api:
        was = api.shadows.stop(model)
    write(f"{plain_text(was.release)} is no shadow any more")


def _about_devices(api: Fleet, selector: str) -> list[str]:
    """Return that no device matches a selector, and what may be meant; empty if one does."""
    if api.devices.list(selector=selector).page(limit=1)[0]:
        return []
    return [
        f"no device matches {plain_text(selected(selector))} yet",
        *about_selector(api, selector),
    ]


def _share(shadow: Shadow) -> str:
    return f"{value_text(shadow.share * 100)} %"


def _row(figures: ShadowFigures) -> tuple[object, ...]:
    requests = figures.requests
    skipped = sorted(figures.skipped.items(), key=lambda item: (-item[1], item[0]))
    return (
        plain_text(figures.profile),
        figures.devices,
        requests,
        _percent(figures.agreements, requests),
        _percent(figures.failures, requests),
        _figure(figures.latency_p50_ms),
        _figure(figures.live_latency_p50_ms),
        _figure(figures.latency_p95_ms),
        _figure(figures.live_latency_p95_ms),
        _figure(figures.difference_p50),
        " ".join(f"{plain_text(reason)}={count}" for reason, count in skipped) or "none",
    )


def _percent(part: int, whole: int) -> str:
    # Never rounded up to all, nor down to nothing.
    if whole == 0:
        return "-"
    percent = 100 * part / whole
    return f"{percent:.0f}%" if part in {0, whole} else f"{min(max(percent, 0.01), 99.99):.2f}%"


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
