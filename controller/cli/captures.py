"""`fleet capture ...`: samples from devices in the field, which only the operator can read."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Annotated

import typer

from controller.capture_schemas import Capture, CaptureRequest
from controller.cli import completion
from controller.cli.arguments import JsonOption, parse_bytes, selected
from controller.cli.commands import Commands, add_group
from controller.cli.connecting import connect
from controller.cli.errors import ArgumentError
from controller.cli.hints import about_selector
from controller.cli.lists import time_heading, write_list
from controller.cli.output import write_json
from controller.client.fleet import Fleet
from wire.console.output import remark, write, write_fields
from wire.console.sizes import bytes_text
from wire.console.text import local_time, plain_text, value_text

PUBLIC_SUFFIX = ".pub"
MAX_KEY_CHARS = 64

ModelArgument = Annotated[
    str,
    typer.Argument(metavar="MODEL", help="Name of the model.", autocompletion=completion.models),
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    commands: Commands = {
        "key": capture_key,
        "start": capture_start,
        "list": capture_list,
        "pull": capture_pull,
        "stop": capture_stop,
    }
    add_group(app, "capture", "Take samples from devices, to train again.", commands)


def capture_key(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File to write the private key to.")],
) -> None:
    """Make the keys of captures: FILE opens samples, and FILE.pub goes to devices.

    Whoever has FILE can read what was captured with it. Without it nobody can.

    Examples:
        fleet capture key samples.key
    """  # noqa: DOC501 - is the help text
    from packager.package.keys import write_key
    from wire.files import write_new
    from wire.trust.sealing import OpeningKey

    key, secret = OpeningKey.generate()
    public, text = file.with_name(file.name + PUBLIC_SUFFIX), _text(key.public_key)
    write_key(file, secret)
    try:
        write_new(public, f"{text}\n".encode())
    except OSError as exc:
        file.unlink()
        raise ArgumentError(
            f"cannot write {public}: {(exc.strerror or str(exc)).lower()}",
            remedy="name another file",
        ) from exc
    write_fields((("private key", str(file)), ("public key", f"{text} in {public}")))


def capture_start(
    context: typer.Context,
    model: ModelArgument,
    public_key: Annotated[
        Path,
        typer.Option(
            help="The key that samples are sealed to: FILE.pub of `fleet capture key`.",
            metavar="FILE",
        ),
    ],
    share: Annotated[
        float | None,
        typer.Option(
            help="Share of the requests, such as 0.01. With --margin: of the hard ones, by default "
            "all.",
            metavar="SHARE",
        ),
    ] = None,
    margin: Annotated[
        float | None,
        typer.Option(
            help="Only where the model is in doubt: its two greatest scores differ by less.",
            metavar="NUMBER",
        ),
    ] = None,
    bytes_per_day: Annotated[
        str,
        typer.Option(help="What each device may take in a day, such as 1MB.", metavar="SIZE"),
    ] = "1MB",
    selector: Annotated[
        str,
        typer.Option(
            help="The devices that it is for. The default is all devices.",
            metavar="SELECTOR",
            autocompletion=completion.selectors,
        ),
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Take samples of requests for a model: their inputs, and the answers.

    Devices seal each to the key before they store or send it; the controller cannot read it. A new
    start takes the place of the one before, and devices drop what they took for that.

    Examples:
        fleet capture start digits --share 0.01 --public-key samples.key.pub
        fleet capture start digits --margin 0.1 --public-key samples.key.pub
    """  # noqa: DOC501 - is the help text
    if share is None and margin is None:
        raise ArgumentError(
            "nothing says which requests", remedy="give --share, such as 0.01, or --margin"
        )
    request = CaptureRequest(
        public_key=_public_key(public_key),
        selector=selector,
        share=1.0 if share is None else share,
        margin=margin,
        bytes_per_day=parse_bytes(bytes_per_day, option="--bytes-per-day"),
    )
    with connect(context) as api:
        found = api.captures.list()
        before = next((each for each in found if each.model == model and each.is_on), None)
        capture = api.captures.start(model, request)
        hints = _about_devices(api, capture.selector)
    if as_json:
        write_json(capture)
        return
    whom = plain_text(selected(capture.selector))
    write(f"model {plain_text(capture.model)}, {whom}: {_which(capture)}")
    if before is not None:
        whom = plain_text(selected(before.selector))
        remark(f"it takes the place of a capture of {whom}: {_which(before)}")
    if hints:
        remark(f"warning: {'; '.join(hints)}")
        return
    remark("devices that are online begin within seconds, the others when they connect")


def capture_list(context: typer.Context, as_json: JsonOption = False) -> None:
    """List what is captured, and what is kept at the controller.

    Examples:
        fleet capture list
    """
    with connect(context) as api:
        found = api.captures.list()
    if as_json:
        write_json(found)
        return
    started = time_heading("STARTED", (each.started_at_s for each in found))
    write_list(
        ("MODEL", "CAPTURES", "SELECTOR", "DEVICES", "ACCEPTED", "SAMPLES", "SIZE", started),
        [
            (
                each.model,
                _which(each),
                selected(each.selector) if each.is_on else "",
                each.devices,
                each.accepted,
                each.samples,
                bytes_text(each.sample_bytes),
                "" if each.started_at_s is None else local_time(each.started_at_s),
            )
            for each in found
        ],
        none="no captures, and no samples; `fleet capture start` begins one",
        minor=(started, "ACCEPTED"),
    )


def capture_pull(
    context: typer.Context,
    model: ModelArgument,
    private_key: Annotated[
        Path,
        typer.Option(help="The key that opens them: FILE of `fleet capture key`.", metavar="FILE"),
    ],
    to: Annotated[Path, typer.Option("--to", help="Directory to write them into.", metavar="DIR")],
) -> int:
    """Fetch the samples of a model and open them here.

    DIR/inputs has an .npz file for each request, as `fleet build --evaluation` reads them, and
    DIR/answers what the model answered. DIR/index.jsonl tells of each its release, variant, device
    and time. What is there already is not fetched again. The status is 1 if some cannot be opened.

    Examples:
        fleet capture pull digits --private-key samples.key --to samples
    """
    from controller.cli.pulling import Pull, opening_key

    key = opening_key(private_key)
    with connect(context) as api:
        done = Pull(api, model, key, to).run()
    if not (done.new or done.known or done.unopened):
        write(f"the controller has no samples of model {plain_text(model)}")
        return 0
    write(f"{done.new} new samples in {to}, {done.known} were there")
    if done.unopened:
        remark(f"{done.unopened} cannot be opened, such as {done.example}")
    return 1 if done.unopened else 0


def capture_stop(context: typer.Context, model: ModelArgument) -> None:
    """Take no more samples of a model. The controller keeps those that it has for a time.

    Examples:
        fleet capture stop digits
    """
    with connect(context) as api:
        left = api.captures.stop(model)
    write(f"model {plain_text(left.model)}: nothing is captured, {left.samples} samples are kept")


def _about_devices(api: Fleet, selector: str) -> list[str]:
    """Return that no device matches a selector, and what may be meant; empty if one does."""
    if api.devices.list(selector=selector).page(limit=1)[0]:
        return []
    return [
        f"no device matches {plain_text(selected(selector))} yet",
        *about_selector(api, selector),
    ]


def _which(capture: Capture) -> str:
    if not capture.is_on or capture.share is None:
        return "nothing"
    share = f"{value_text(capture.share * 100)} %"
    per_day = f"up to {_typed_size(capture.bytes_per_day or 0)} a day on each device"
    if capture.margin is None:
        return f"{share}, {per_day}"
    return f"{share} of margins below {value_text(capture.margin)}, {per_day}"


def _typed_size(size_bytes: int) -> str:
    """Return a size as it was typed, most likely: `1 MB`, not 976.6 KiB."""
    for name, unit in (("GB", 1000**3), ("MB", 1000**2), ("kB", 1000)):
        if size_bytes >= unit:
            whole = size_bytes % (unit // 10) == 0
            return f"{size_bytes / unit:g} {name}" if whole else bytes_text(size_bytes)
    return bytes_text(size_bytes)


def _text(public_key: bytes) -> str:
    return base64.b64encode(public_key).decode()


def _public_key(path: Path) -> str:
    """Read a public key.

    Raises:
        ArgumentError: It cannot be read, or is none.
    """
    from wire.files import open_file

    try:
        with open_file(path) as file:
            text = file.read(MAX_KEY_CHARS + 1).decode(errors="replace").strip()
    except OSError as exc:
        reason = (exc.strerror or str(exc)).lower()
        raise ArgumentError(f"cannot read {path}: {reason}", remedy="check the path") from exc
    from wire.capture import CaptureRule

    if not CaptureRule(id="", public_key=text).key:
        raise ArgumentError(
            f"{path} holds no public key",
            remedy="make one with `fleet capture key FILE`, and give FILE.pub",
        )
    return text
