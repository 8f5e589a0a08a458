"""`fleet build`, `profile`, `package` and `key`: a model becomes a signed package."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from controller.cli.output import bytes_text, remark, write, write_fields, write_table

if TYPE_CHECKING:
    from packager.build import BuildRequest, BuildResult
    from packager.plan import Plan

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
PackageArgument = Annotated[Path, typer.Argument(metavar="DIR", help="Package directory.")]
ProfileOption = Annotated[
    list[str],
    typer.Option(
        "--profile", "-p", metavar="NAME_OR_FILE", help="Kind of device; may be given repeatedly."
    ),
]
DEFAULT_CACHE = Path("~/.cache/edgefleet/build")


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("build")(build_command)
    profile = typer.Typer(help="Kinds of devices.", no_args_is_help=True)
    profile.command("list")(profile_list)
    profile.command("show")(profile_show)
    profile.command("detect")(profile_detect)
    app.add_typer(profile, name="profile")
    package = typer.Typer(help="Packages on this disk.", no_args_is_help=True)
    package.command("show")(package_show)
    package.command("sign")(package_sign)
    package.command("verify")(package_verify)
    package.command("diff")(package_diff)
    app.add_typer(package, name="package")
    key = typer.Typer(help="Signing keys.", no_args_is_help=True)
    key.command("generate")(key_generate)
    key.command("show")(key_show)
    app.add_typer(key, name="key")


def build_command(  # noqa: PLR0913, PLR0917 - one parameter per option
    model: Annotated[Path, typer.Argument(metavar="MODEL.onnx", help="The trained model.")],
    profile: ProfileOption,
    evaluation: Annotated[
        Path, typer.Option(metavar="FILE.npz", help="Samples on which every variant is judged.")
    ],
    calibration: Annotated[
        Path | None,
        typer.Option(metavar="FILE.npz", help="Other samples, for int8; without it no int8."),
    ] = None,
    metric: Annotated[
        str, typer.Option(help="auto, top1 (needs labels), agreement or cosine.")
    ] = "auto",
    min_retention: Annotated[
        float, typer.Option(help="Least share of the reference's metric that a variant keeps.")
    ] = 0.99,
    max_size: Annotated[int | None, typer.Option(metavar="BYTES", help="Of a variant.")] = None,
    max_latency_ms: Annotated[
        float | None, typer.Option(help="Median on this machine, in milliseconds.")
    ] = None,
    max_memory: Annotated[
        int | None, typer.Option(metavar="BYTES", help="Peak of a variant's process.")
    ] = None,
    keep: Annotated[
        list[str] | None, typer.Option(metavar="VARIANT", help="Keep it though others beat it.")
    ] = None,
    name: Annotated[str, typer.Option(help="Of the package; else the model's file name.")] = "",
    version: Annotated[str, typer.Option(help="Of the package; else made from the content.")] = "",
    key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Release key to sign with.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="DIR", help="Package to make.")
    ] = None,
    cache: Annotated[
        Path, typer.Option(metavar="DIR", help="Finished steps, measured figures among them.")
    ] = DEFAULT_CACHE,
    step_timeout_s: Annotated[float, typer.Option(min=0.001, help="For one step.")] = 1800.0,
    step_memory: Annotated[
        int, typer.Option(metavar="BYTES", help="For one step; 0 for 3/4 of this machine's.")
    ] = 0,
    force: Annotated[bool, typer.Option("--force", help="Replace a package.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the plan.")] = False,
    json: JsonOption = False,
) -> None:
    """Build a package: every profile's best variants of one model.

    A second build takes finished steps from the cache, measured figures among them, and gives the
    same bytes. With another cache the model files are the same and the measured figures are new.
    """
    from packager.build import BuildRequest, build, plan_build
    from packager.device_profiles import load_profile
    from packager.gates import Gates
    from packager.process import StepLimits

    request = BuildRequest(
        model=model,
        profiles=tuple(load_profile(text) for text in profile),
        evaluation=evaluation,
        calibration=calibration,
        output=output,
        cache=cache.expanduser(),
        name=name,
        version=version,
        metric=metric,
        gates=Gates(
            min_retention=min_retention,
            max_size_bytes=max_size,
            max_latency_ms=max_latency_ms,
            max_memory_bytes=max_memory,
        ),
        keep=tuple(keep or ()),
        key=key,
        force=force,
        limits=StepLimits(timeout_s=step_timeout_s, memory_bytes=step_memory),
    )
    if dry_run:
        with _progress() as progress:
            plan = plan_build(request, progress)
        _show_plan(request, plan, json=json)
        return
    with _progress() as progress:
        result = build(request, progress)
    _show_result(request, result, json=json)


def profile_list(*, json: JsonOption = False) -> None:
    """List the shipped profiles."""
    from packager.device_profiles import load_profile, profile_names

    profiles = [load_profile(name) for name in profile_names()]
    if json:
        _write_json(profiles)
        return
    write_table(
        ("NAME", "ARCHITECTURE", "MEMORY", "RUNTIMES", "DESCRIPTION"),
        [
            (p.name, p.architecture, bytes_text(p.memory_bytes), p.runtimes, p.description)
            for p in profiles
        ],
    )


def profile_show(
    name: Annotated[str, typer.Argument(metavar="NAME_OR_FILE", help="Of a profile.")],
    *,
    json: JsonOption = False,
) -> None:
    """Show a profile as a TOML file."""
    from packager.device_profiles import load_profile, profile_to_toml

    profile = load_profile(name)
    if json:
        _write_json(profile)
    else:
        write(profile_to_toml(profile).rstrip())


def profile_detect(
    name: Annotated[str, typer.Option(help="Of the profile; else the board's name.")] = "",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write it there.")
    ] = None,
    *,
    json: JsonOption = False,
) -> None:
    """Describe this machine as a profile."""
    from packager.device_profiles import detect_profile, profile_to_toml, save_profile

    profile = detect_profile(name)
    if output is not None:
        save_profile(profile, output)
        remark(f"wrote {output}")
    elif json:
        _write_json(profile)
    else:
        write(profile_to_toml(profile).rstrip())


def package_show(directory: PackageArgument, *, json: JsonOption = False) -> None:
    """Show what is in a package, after checking every file's digest."""
    from packager.bundle import open_package, signers
    from packager.report import figure_columns, manifest_rows
    from wire.codec import to_builtins

    manifest, index = open_package(directory)
    keyids = signers(directory)
    if json:
        facts = {"digest": index.digest, "size_bytes": index.size_bytes, "signed_by": keyids}
        _write_json(facts | to_builtins(manifest))
        return
    write_fields(
        (
            ("package", f"{manifest.name}:{manifest.version}"),
            ("digest", index.digest),
            ("size", bytes_text(index.size_bytes)),
            ("signed by", ", ".join(keyids) or "nobody"),
            ("measured on", manifest.metadata.get("machine")),
        )
    )
    write()
    metric = str(manifest.metadata.get("metric") or "metric")
    write_table(figure_columns(metric), manifest_rows(manifest))
    write()
    write_table(
        ("VARIANT", "RUNTIME", "PRECISION", "PROFILES"),
        [(v.name, v.info.runtime, v.info.precision, v.info.profiles) for v in manifest.variants],
    )


def package_sign(
    directory: PackageArgument,
    key: Annotated[Path, typer.Option(metavar="FILE", help="Release key.")],
) -> None:
    """Sign a package as it is on this disk."""
    from packager.bundle import seal
    from packager.keys import load_key

    index = seal(directory, load_key(key))
    write(index.digest)


def package_verify(
    directory: PackageArgument,
    trust: Annotated[Path, typer.Option(metavar="trust.json", help="Trust root of the fleet.")],
) -> None:
    """Check every file's digest and the release signature."""
    from packager.bundle import load_trust, open_package

    manifest, index = open_package(directory, trust=load_trust(trust))
    write(f"{manifest.name}:{manifest.version} {index.digest} verified")


def package_diff(
    old: Annotated[Path, typer.Argument(metavar="OLD", help="Package that devices have.")],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="Package that they would get.")],
    *,
    json: JsonOption = False,
) -> None:
    """Compare two packages file by file; exit code 1 when they differ."""  # noqa: DOC501 - is the help text
    from packager.bundle import compare_packages, open_package

    differences = compare_packages(open_package(old)[1], open_package(new)[1])
    if json:
        _write_json(differences)
    else:
        write_table(
            ("CHANGE", "PATH", "OLD BYTES", "NEW BYTES", "CHUNKS SHARED"),
            [(d.change, d.path, d.old_bytes, d.new_bytes, d.shared_chunks) for d in differences],
        )
    if differences:
        raise typer.Exit(1)


def key_generate(file: Annotated[Path, typer.Argument(metavar="FILE", help="To make.")]) -> None:
    """Make a signing key, and print its name and public half."""
    from packager.keys import generate_key
    from wire.trust import encode_key

    key = generate_key(file)
    write_fields((("key id", key.keyid), ("public key", encode_key(key.public_key))))


def key_show(file: Annotated[Path, typer.Argument(metavar="FILE", help="A key.")]) -> None:
    """Print a key's name and public half, for a trust root."""
    from packager.keys import load_key
    from wire.trust import encode_key

    key = load_key(file)
    write_fields((("key id", key.keyid), ("public key", encode_key(key.public_key))))


def _show_plan(request: BuildRequest, plan: Plan, *, json: bool) -> None:
    from packager.report import STEP_COLUMNS, VERDICT_COLUMNS, plan_rows, step_rows

    if json:
        _write_json(plan)
        return
    write_table(VERDICT_COLUMNS, plan_rows(plan, request.profiles))
    write()
    write_table(STEP_COLUMNS, step_rows(plan))


def _show_result(request: BuildRequest, result: BuildResult, *, json: bool) -> None:
    from packager.report import VERDICT_COLUMNS, figure_columns, figure_rows, verdict_rows

    if json:
        _write_json(result)
        return
    write(f"{result.samples} evaluation samples; latency measured on {result.machine}")
    write_table(figure_columns(result.metric), figure_rows(result.candidates))
    write()
    write_table(VERDICT_COLUMNS, verdict_rows(result, request.profiles))
    for note in result.notes:
        remark(f"note: {note}")
    write()
    cached = sum(step.state == "cached" for step in result.steps)
    write_fields(
        (
            ("package", result.package),
            ("name", f"{result.name}:{result.version}"),
            ("digest", result.digest),
            ("size", bytes_text(result.size_bytes)),
            ("signed", result.signed),
            ("steps", f"{len(result.steps)}, {cached} from the cache"),
        )
    )


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Tell a person in one line what is going on; say nothing to a pipe or a log."""
    if not sys.stderr.isatty():
        yield lambda _line: None
        return
    from rich.console import Console

    with Console(stderr=True).status("building ...") as status:
        yield status.update


def _write_json(value: object) -> None:
    from wire.codec import to_pretty_json

    write(to_pretty_json(value).decode().rstrip())
