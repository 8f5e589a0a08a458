"""`fleet profile`, `package` and `key`: what a package is made for, what is in it, who signs it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from controller.cli.arguments import JsonOption
from controller.cli.output import (
    bytes_text,
    remark,
    write,
    write_fields,
    write_plain_json,
    write_table,
)

PackageArgument = Annotated[Path, typer.Argument(metavar="DIR", help="Package directory.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
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


def profile_list(*, json: JsonOption = False) -> None:
    """List the shipped profiles."""
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
    name: Annotated[str, typer.Argument(metavar="NAME_OR_FILE", help="Of a profile.")],
    *,
    json: JsonOption = False,
) -> None:
    """Show a profile as a TOML file."""
    from packager.device_profiles import load_profile, profile_to_toml

    profile = load_profile(name)
    if json:
        write_plain_json(profile)
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
        write_plain_json(profile)
    else:
        write(profile_to_toml(profile).rstrip())


def package_show(directory: PackageArgument, *, json: JsonOption = False) -> None:
    """Show what is in a package, after checking every file's digest."""
    from packager.package.directory import open_package, signers
    from packager.report.tables import figure_columns, manifest_rows
    from packager.samples.declarations import declared_lines
    from wire.codec import to_builtins

    manifest, index = open_package(directory)
    keyids = signers(directory)
    if json:
        facts = {"digest": index.digest, "size_bytes": index.size_bytes, "signed_by": keyids}
        write_plain_json(facts | to_builtins(manifest))
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
    declared = dict.fromkeys(line for v in manifest.variants for line in declared_lines(v.info))
    if declared:
        write()
        write_table(("DECLARED",), [(line,) for line in declared])


def package_sign(
    directory: PackageArgument,
    key: Annotated[Path, typer.Option(metavar="FILE", help="Release key.")],
) -> None:
    """Sign a package as it is on this disk."""
    from packager.package.directory import seal
    from packager.package.keys import load_key

    index = seal(directory, load_key(key))
    write(index.digest)


def package_verify(
    directory: PackageArgument,
    trust: Annotated[Path, typer.Option(metavar="trust.json", help="Trust root of the fleet.")],
) -> None:
    """Check every file's digest and the release signature."""
    from packager.package.directory import load_trust, open_package

    manifest, index = open_package(directory, trust=load_trust(trust))
    write(f"{manifest.name}:{manifest.version} {index.digest} verified")


def package_diff(
    old: Annotated[Path, typer.Argument(metavar="OLD", help="Package that devices have.")],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="Package that they would get.")],
    *,
    json: JsonOption = False,
) -> None:
    """Compare two packages: variants, figures, what devices would fetch, files.

    The exit code is 1 when they differ.
    """  # noqa: DOC501 - is the help text
    from packager.report import diff

    found = diff.compare_directories(old, new)
    if json:
        write_plain_json(found)
    else:
        write_fields(
            (("old", f"{found.old} {found.old_digest}"), ("new", f"{found.new} {found.new_digest}"))
        )
        write()
        write_table(diff.VARIANT_COLUMNS, diff.variant_rows(found))
        write()
        write_table(diff.PROFILE_COLUMNS, diff.profile_rows(found))
        write()
        write_table(diff.FILE_COLUMNS, diff.file_rows(found))
    if not found.same:
        raise typer.Exit(1)


def key_generate(file: Annotated[Path, typer.Argument(metavar="FILE", help="To make.")]) -> None:
    """Make a signing key, and print its name and public half."""
    from packager.package.keys import generate_key
    from wire.trust.root import encode_key

    key = generate_key(file)
    write_fields((("key id", key.keyid), ("public key", encode_key(key.public_key))))


def key_show(file: Annotated[Path, typer.Argument(metavar="FILE", help="A key.")]) -> None:
    """Print a key's name and public half, for a trust root."""
    from packager.package.keys import load_key
    from wire.trust.root import encode_key

    key = load_key(file)
    write_fields((("key id", key.keyid), ("public key", encode_key(key.public_key))))
