"""What commands do with the trusted list of a model's releases: put a package on it, take one off.

Rules:
- What is revoked is never listed again.
- Keys that nobody named list only packages that one of them has signed.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import typer

from controller.cli.drafts import finish
from controller.cli.errors import ArgumentError
from controller.cli.signing import Signing, current, needed, open_keys, root_of
from controller.client.errors import FaultError
from controller.client.fleet import Fleet
from wire.clock import SystemClock
from wire.console.output import remark
from wire.errors import FleetError
from wire.trust.roles import RELEASES, target_path

MAX_NAMED = 5

if TYPE_CHECKING:
    from controller.metadata.documents import Authored, Document
    from packager.package.signers import KeySigner


def listing(
    context: typer.Context, api: Fleet, package: Path, signing: Signing
) -> tuple[Authored, Authored, list[KeySigner]] | None:
    """Return what it takes to list a package.

    Args:
        context: Says where the controller's directory is.
        api: The controller.
        package: The directory of the package.
        signing: How the list is signed.

    Returns:
        The metadata that holds, that with the package in it, and what signs. None if the fleet has
        no metadata, or lists the package already.

    Raises:
        ArgumentError: It was revoked, or no key at hand may list it.
        FleetError: The controller does not answer, or the package cannot be read.
    """
    before = _known(context, api, signing)
    if before is None:
        return None
    from controller.metadata.edit import with_release
    from packager.package.content import directory_content, index_of

    index = index_of(directory_content(package).envelope)
    _check_not_revoked(api, f"{index.name}:{index.version}")
    found = with_release(
        before,
        index.name,
        index.version,
        sha256=index.digest,
        size_bytes=len(index.to_bytes()),
        now_s=SystemClock().now_s(),
    )
    return None if found is None else _signable(context, package, before, found, signing)


def _signable(
    context: typer.Context,
    package: Path,
    before: Authored,
    found: tuple[str, Document],
    signing: Signing,
) -> tuple[Authored, Authored, list[KeySigner]]:
    """Return both metadata and the keys, or refuse at once what nobody at hand may sign.

    Raises:
        ArgumentError: No key at hand may sign the list.
    """
    from controller.metadata.edit import put

    role, document = found
    signers = open_keys(context, signing)
    allowed = before.keys(role)
    if not signing.keys:
        _check_own(package, signers, allowed)
    if signing.draft is None and not any(s.public_key.keyid in allowed for s in signers):
        raise ArgumentError(
            f"devices take only what is listed, and no key at hand may sign the list {role}",
            remedy="add --key with a key of that role, which `fleet key status` names; or "
            "--draft FILE, to let somebody else sign",
        )
    return before, put(before, role, document), signers


def _check_own(package: Path, signers: list[KeySigner], allowed: Collection[str]) -> None:
    """Refuse to list a package with keys that nobody named, unless one of them has signed it.

    Raises:
        ArgumentError: None of them has.
    """
    from packager.package.content import directory_content
    from wire.package.index import PAYLOAD_TYPE
    from wire.trust.envelope import unseal

    keys = [s.public_key for s in signers if s.public_key.keyid in allowed]
    raw = [bytes.fromhex(key.keyval["public"]) for key in keys if key.keytype == "ed25519"]
    if not raw:
        return
    try:
        unseal(directory_content(package).envelope, payload_type=PAYLOAD_TYPE, public_keys=raw)
    except FleetError as exc:
        raise ArgumentError(
            f"{package} is not signed by a key that may list it",
            remedy=f"sign it: fleet package sign {package} --key release.key; or vouch for it: "
            "add --key release.key",
        ) from exc


class Unlisting(NamedTuple):
    """What it takes to take a release off its list; without a change no list has it."""

    change: tuple[Authored, Authored, list[KeySigner]] | None = None
    """The metadata that holds, that without the release, and what signs."""

    missing: str = ""
    """Which keys may sign the list, if none of them is at hand."""


def unlisting(context: typer.Context, api: Fleet, release: str, signing: Signing) -> Unlisting:
    """Return what it takes to take a release off its list.

    Args:
        context: Says where the controller's directory is.
        api: The controller.
        release: Its name and version, or its digest, as the operator named it: what the controller
            says of it may be a lie.
        signing: How the list is signed.

    Raises:
        FleetError: The controller does not answer, or shows what cannot be believed.
    """
    root = root_of(context, signing)
    if root is None and current(api) is None:
        return Unlisting()
    if root is None and not signing.keys:
        # Whoever has no key stops rollouts, from wherever he is.
        return Unlisting(missing="a key of its role, and --root FILE")
    before = needed(api, root)
    from controller.metadata.edit import put, without_release

    name, _, version = _named(before, release).partition(":")
    now_s = SystemClock().now_s()
    found = without_release(before, name, version, now_s)
    if found is None:
        role = before.role_of(target_path(name, version))
        remark(_not_listed(before, role or RELEASES, release, now_s))
        return Unlisting()
    role, document = found
    signers = open_keys(context, signing)
    allowed = before.keys(role)
    missing = ""
    if signing.draft is None and not any(s.public_key.keyid in allowed for s in signers):
        missing = f"a key of the role {role}: {', '.join(key[:16] for key in allowed)}"
    return Unlisting((before, put(before, role, document), signers), missing)


def unlist(api: Fleet, release: str, off: Unlisting, draft: Path | None) -> bool:
    """Take a release off its list; return whether no list has it now.

    Args:
        api: The controller.
        release: Its name and version.
        off: What it takes.
        draft: Where to write a change that lacks signatures.

    Raises:
        FleetError: The controller refuses it.
    """
    if off.missing:
        remark(
            f"{release} is still on a trusted list; to take it out, repeat this with --key and "
            f"{off.missing}"
        )
        return False
    return off.change is None or finish(api, *off.change, draft) is not None


def _not_listed(metadata: Authored, role: str, release: str, now_s: float) -> str:
    """Return from when the list is that does not have a release: a thief may show an old one.

    Raises:
        ArgumentError: It has ended.
    """
    from controller.metadata.drafts import version_text

    signed = metadata.document(role).signed
    if signed.expires.timestamp() <= now_s:
        raise ArgumentError(
            f"the list {role} that the controller shows ended on {signed.expires:%Y-%m-%d}: it "
            f"may be an old one, and {release} may be on a newer one",
            remedy=f"sign it again if it is the newest: fleet key sign {role} --key KEY",
        )
    return f"{release} is on no list: {role} is version {version_text(role, signed.version)}"


def _named(metadata: Authored, release: str) -> str:
    """Return the name and version of a release that may be named by its digest.

    Raises:
        ArgumentError: Several releases have it.
    """
    names = [
        path.replace("/", ":")
        for listed in metadata.lists.values()
        for path, target in listed.signed.targets.items()
        if target.hashes.get("sha256") == release
    ]
    if len(names) > 1:
        raise ArgumentError(
            f"{release[:16]} is listed as {', '.join(names[:MAX_NAMED])}",
            remedy="name the release by its name and version, one after the other",
        )
    return names[0] if names else release


def _known(context: typer.Context, api: Fleet, signing: Signing) -> Authored | None:
    """Return what people have signed of the fleet's metadata; None for a fleet without it.

    Where a root is known there is metadata, whatever the controller says.

    Raises:
        FleetError: The controller does not answer, or what it shows is old or of another root.
    """
    root = root_of(context, signing)
    if root is None and current(api) is None:
        return None
    return needed(api, root)


def _check_not_revoked(api: Fleet, release: str) -> None:
    """Refuse to list what was revoked.

    Raises:
        ArgumentError: It was.
        FaultError: The controller refuses.
    """
    try:
        known = api.releases.get(release)
    except FaultError as exc:
        if exc.status == 404:  # noqa: PLR2004 - HTTP
            return
        raise
    if known.state != "published":
        raise ArgumentError(f"{release} has been revoked", remedy="give the package a new version")
