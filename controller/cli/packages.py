"""`fleet profile` and `package`: what a package is made for, and what is in it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from controller.cli import materials
from controller.cli.arguments import JsonOption
from controller.cli.commands import Commands, add_group
from controller.cli.errors import NotVerifiedError
from controller.cli.output import write_plain_json
from controller.cli.registries import package_pull, package_push
from wire.console.output import remark, write, write_exact, write_fields, write_table
from wire.console.sizes import bytes_text
from wire.errors import IntegrityError, SignatureError

PackageArgument = Annotated[Path, typer.Argument(metavar="DIR", help="Directory of the package.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    profiles: Commands = {"list": profile_list, "show": profile_show, "detect": profile_detect}
    add_group(app, "profile", "Show kinds of devices.", profiles)
    packages: Commands = {
        "show": package_show,
        "layers": package_layers,
        "sign": package_sign,
        "verify": package_verify,
        "diff": package_diff,
        "export": package_export,
        "import": package_import,
        "push": package_push,
        "pull": package_pull,
        **materials.COMMANDS,
    }
    add_group(app, "package", "Check and sign packages on this disk.", packages)


def profile_list(*, json: JsonOption = False) -> None:
    """List the shipped profiles.

    Examples:
        fleet profile list
    """
    from packager.device_profiles import load_profile, profile_names

    profiles = [load_profile(name) for name in profile_names()]
    if json:
        write_plain_json(profiles)
        return
    write_table(
        ("NAME", "ARCHITECTURE", "MEMORY", "RUNTIMES", "DESCRIPTION"),
        [
            (p.name, p.architecture, bytes_text(p.memory_bytes), p.runtimes, p.description)
            for p in profiles
        ],
    )


def profile_show(
    name: Annotated[
        str, typer.Argument(metavar="PROFILE", help="Name of a profile, or a TOML file.")
    ],
    *,
    json: JsonOption = False,
) -> None:
    """Show a profile as a TOML file.

    Examples:
        fleet profile show rpi4
        fleet profile show rpi4 > my-board.toml
    """
    from packager.device_profiles import load_profile
    from wire.profile import profile_to_toml

    profile = load_profile(name)
    if json:
        write_plain_json(profile)
    else:
        write_exact(profile_to_toml(profile).rstrip())


def profile_detect(
    name: Annotated[
        str,
        typer.Option(help="Name of the profile. The default is that of the board.", metavar="NAME"),
    ] = "",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write the profile to this file."),
    ] = None,
    *,
    json: JsonOption = False,
) -> None:
    """Describe this machine as a profile.

    Examples:
        fleet profile detect
        fleet profile detect --name my-board -o my-board.toml
    """
    from packager.device_profiles import save_profile
    from runtime_adapters.machine import detect_profile
    from wire.profile import profile_to_toml

    profile = detect_profile(name)
    if output is not None:
        save_profile(profile, output)
        remark(f"wrote {output}")
    elif json:
        write_plain_json(profile)
    else:
        write_exact(profile_to_toml(profile).rstrip())


def package_show(directory: PackageArgument, *, json: JsonOption = False) -> None:
    """Show what is in a package, after checking the digest of every file.

    Examples:
        fleet package show detector-1.0.0
    """
    from packager.package.directory import open_package, signers
    from packager.report import further, shapes
    from packager.report.tables import FIGURES_MINOR, figure_columns, manifest_rows
    from packager.result import drift_notes
    from packager.samples.declarations import declared_lines
    from wire.codec import to_builtins

    manifest, index = open_package(directory)
    keyids = signers(directory)
    states = next((v.info.states for v in manifest.variants if v.info.states), {})
    if json:
        facts = {"digest": index.digest, "size_bytes": index.size_bytes, "signed_by": keyids}
        write_plain_json(facts | to_builtins(manifest))
        return
    write_fields(
        (
            ("package", f"{manifest.name}:{manifest.version}"),
            ("digest", index.digest),
            ("size", bytes_text(index.size_bytes)),
            ("signed by", f"{', '.join(keyids)} (not checked)" if keyids else "nobody"),
            ("measured on", manifest.metadata.get("machine")),
            ("interface", manifest.metadata.get("interface")),
            ("states", [f"{name}={output}" for name, output in states.items()] or None),
        )
    )
    write()
    metric = str(manifest.metadata.get("metric") or "metric")
    write_table(figure_columns(metric), manifest_rows(manifest), minor=FIGURES_MINOR)
    write()
    if rows := further.manifest_rows(manifest):
        write_table(further.COLUMNS, rows, minor=further.MINOR)
        write()
    if rows := shapes.manifest_rows(manifest):
        write_table(shapes.COLUMNS, rows, minor=shapes.MINOR)
        write()
    write_table(
        ("VARIANT", "RUNTIME", "PRECISION", "PROFILES"),
        [(v.name, v.info.runtime, v.info.precision, v.info.profiles) for v in manifest.variants],
    )
    if drifts := drift_notes(manifest.variants):
        write()
        write_table(("DRIFT",), [(line,) for line in drifts])
    declared = dict.fromkeys(line for v in manifest.variants for line in declared_lines(v.info))
    if declared:
        write()
        write_table(("DECLARED",), [(line,) for line in declared])


def package_layers(
    directory: PackageArgument,
    variant: Annotated[str, typer.Option(metavar="VARIANT", help="The variant to profile.")],
    threads: Annotated[
        int,
        typer.Option(metavar="N", min=0, help="Threads; 0 for as many as the build measured with."),
    ] = 0,
    runs: Annotated[
        int,
        typer.Option(metavar="N", min=0, help="Inferences to profile; 0 for about two seconds."),
    ] = 0,
    *,
    json: JsonOption = False,
) -> None:
    """Profile each layer of a variant on this machine.

    It shows the time of each layer, its precision, the size of its output, and which layers of the
    model the runtime fused into it, as far as the runtime tells.

    Examples:
        fleet package layers detector-1.0.0 --variant onnxruntime-fp32
    """
    from packager.package.layers import profile_variant
    from packager.report import layers

    found, profile = profile_variant(directory, variant, threads=threads, runs=runs)
    if json:
        write_plain_json(profile)
        return
    write_fields(layers.layer_facts(profile, found.info.performance))
    if sums := layers.total_rows(profile):
        write()
        write_table(layers.TOTAL_COLUMNS, sums)
    if rows := layers.layer_rows(profile):
        write()
        write_table(layers.COLUMNS, rows, minor=layers.MINOR)
    left = layers.left_text(profile)
    untold = f"no times: {profile.untold}" if profile.untold else ""
    for line in (left and f"{left}; --json lists them", untold, *layers.layer_notes(profile)):
        if line:
            remark(f"note: {line}")


def package_sign(
    directory: PackageArgument,
    key: Annotated[Path, typer.Option(metavar="FILE", help="Release key to sign with.")],
) -> None:
    """Sign a package as it is on this disk.

    Examples:
        fleet package sign detector-1.0.0 --key my-fleet-offline/release.key
    """
    from packager.package.directory import seal
    from packager.package.keys import load_key

    index = seal(directory, load_key(key))
    write(index.digest)


def package_verify(
    directory: PackageArgument,
    trust: Annotated[
        Path,
        typer.Option(
            metavar="FILE", help="What counts: trust.json, or a file of `fleet key export`."
        ),
    ],
) -> None:
    """Check the digest of every file and the release signature.

    The exit status is 1 if the package does not verify, and 2 if it could not be checked, as where
    FILE or DIR is something else.

    Examples:
        fleet package verify detector-1.0.0 --trust metadata.json
    """  # noqa: DOC501 - is the help text
    from controller.cli.trusting import load_trust
    from packager.package.directory import open_package

    known = load_trust(trust)
    try:
        manifest, index = open_package(directory, trust=known)
    except (IntegrityError, SignatureError) as exc:
        raise NotVerifiedError(exc.message, remedy=exc.remedy) from exc
    write(f"{manifest.name}:{manifest.version} {index.digest} verified")


def package_diff(
    old: Annotated[
        Path, typer.Argument(metavar="OLD", help="Directory of the package that devices have.")
    ],
    new: Annotated[
        Path, typer.Argument(metavar="NEW", help="Directory of the package that devices would get.")
    ],
    *,
    json: JsonOption = False,
) -> None:
    """Compare two packages.

    It shows variants, figures, what devices would fetch, and files. The exit code is 1 when the
    packages differ.

    Examples:
        fleet package diff detector-1.0.0 detector-1.1.0
    """  # noqa: DOC501 - is the help text
    from packager.report import diff, further

    found = diff.compare_directories(old, new)
    if json:
        write_plain_json(found)
    else:
        write_fields(
            (("old", f"{found.old} {found.old_digest}"), ("new", f"{found.new} {found.new_digest}"))
        )
        write()
        write_table(diff.VARIANT_COLUMNS, diff.variant_rows(found))
        if rows := further.difference_rows(found):
            write()
            write_table(further.DIFFERENCE_COLUMNS, rows)
        write()
        write_table(diff.PROFILE_COLUMNS, diff.profile_rows(found))
        write()
        write_table(diff.FILE_COLUMNS, diff.file_rows(found))
    if not found.same:
        raise typer.Exit(1)


def package_export(
    context: typer.Context,
    package: Annotated[
        str,
        typer.Argument(
            metavar="PACKAGE",
            help="Directory of a package, or a release as NAME:VERSION or its digest.",
        ),
    ],
    to: Annotated[Path, typer.Option(metavar="FILE", help="File to write. It must not exist yet.")],
    profile: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PROFILE",
            help="Only the variants for this kind of device; may be given more than once.",
        ),
    ] = None,
    device: Annotated[
        str,
        typer.Option(
            metavar="DEVICE",
            help="Put the signed order for this device into the file, so that it installs the "
            "package without a network. A rollout must have ordered the release for it.",
        ),
    ] = "",
    *,
    json: JsonOption = False,
) -> None:
    """Write a package into one file, to be carried by hand.

    On a device, `fleet-agent install FILE` takes it. The package must be signed. The file is a tar
    archive; equal packages give equal files.

    Examples:
        fleet package export detector:1.0.0 --to /media/stick/a.tar --profile rpi4
        fleet package export detector:1.0.0 --to a.tar --device cam-berlin
        fleet package export detector-1.0.0 --to detector-1.0.0.tar
    """
    from controller.cli.carried import exported

    facts = exported(context, package, to, profiles=profile or (), device=device)
    if json:
        write_plain_json(facts._asdict())
        return
    write_fields(
        (
            ("package", facts.release),
            ("variants", facts.variants),
            ("for device", device or None),
            ("file", to),
            ("size", bytes_text(facts.size_bytes)),
            ("sha256", facts.sha256),
        )
    )


def package_import(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="What `fleet package export` wrote.")
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="Directory to make.")
    ],
    trust: Annotated[
        Path,
        typer.Option(
            metavar="FILE", help="What counts: trust.json, or a file of `fleet key export`."
        ),
    ],
    *,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing package.")] = False,
) -> None:
    """Make the directory of a package from such a file.

    It checks the signature and every digest. `fleet release publish DIR` then publishes the package
    to another controller.

    Examples:
        fleet package import a.tar -o detector-1.0.0 --trust metadata.json
    """
    from controller.cli.trusting import load_trust
    from packager.package.archive import unpack

    index = unpack(file, output, load_trust(trust), force=force)
    write(f"{index.name}:{index.version} {index.digest} verified")
