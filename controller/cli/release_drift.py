"""`fleet device drift`: devices that run another release than they should, since when, and why."""

from __future__ import annotations

from typing import Annotated

import typer

from controller.cli import completion
from controller.cli.arguments import JsonOption
from controller.cli.connecting import connect, tell_cut_off
from controller.cli.lists import write_list
from controller.cli.output import write_json
from wire.clock import SystemClock
from wire.console.text import age_text


def device_drift(
    context: typer.Context,
    selector: Annotated[
        str,
        typer.Option(
            help="Show only these devices, such as site=berlin.",
            metavar="SELECTOR",
            autocompletion=completion.selectors,
        ),
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """List devices that run another release than they should, since when, and why.

    Rollouts that go on are included, unlike in `fleet device list --drifted`. The reasons: failed,
    refuses, offline, in-flight, lost (it had the release, or never took it, and does not say why),
    and contradicts: it reported a success, and says now that another release is active.

    Examples:
        fleet device drift
        fleet device drift --selector "site=berlin and online=true"
    """
    with connect(context) as api:
        found = list(api.devices.drift(selector=selector))
        tell_cut_off(api)
    if as_json:
        write_json(found)
        return
    now_s = SystemClock().now_s()
    write_list(
        ("DEVICE", "MODEL", "RELEASE", "DESIRED", "WHY", "SINCE", "SEEN", "ROLLOUT", "DETAIL"),
        [
            (
                d.device, d.model, d.release, d.desired_release, d.cause,
                age_text(d.since_s, now_s), age_text(d.last_seen_at_s, now_s), d.rollout,
                d.detail or None,
            )
            for d in found
        ],
        none="every device runs what it should",
        minor=("SEEN", "ROLLOUT", "MODEL"),
    )  # fmt: skip
