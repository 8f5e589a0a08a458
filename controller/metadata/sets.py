"""Sets of files as they come: put together, and newer files put in. Pure.

Rules:
- The bytes of a file stay as they were signed.

Source:
    The Update Framework Specification 1.0.34, section 5.3 (a root is signed by the keys of the root
    before it and by its own).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from tuf.api.metadata import Root, Targets

from controller.metadata.checks import check_follows, check_root, check_same_fleet
from controller.metadata.documents import AGAIN, Authored, newest, read, without_strays
from controller.metadata.errors import MetadataError
from wire.metadata import MetadataFile, parse_file_name
from wire.trust.roles import ROOT, SNAPSHOT, TARGETS, TIMESTAMP


def assembled(root: bytes, targets: bytes, lists: Mapping[str, bytes]) -> Authored:
    """Return the metadata that files hold; of their signatures only the root's own are checked.

    Args:
        root: The first root.
        targets: The targets.
        lists: The lists, by role.

    Raises:
        MetadataError: One is malformed, or the root has not signed itself.
    """
    read_root = read(root, Root)
    made = Authored(
        roots=(root,),
        root=read_root,
        targets=read(targets, Targets),
        lists={name: read(data, Targets) for name, data in lists.items()},
        content={TARGETS: targets, **lists},
    )
    check_root(made)
    if read_root.signed.version != 1 or not made.signatures(ROOT).are_enough:
        raise MetadataError("the first root does not have the version 1, or is not signed")
    return made


def changed(before: Authored, files: Iterable[MetadataFile]) -> Authored:
    """Return metadata with newer files in it; signatures are not checked, see `check`.

    Args:
        before: What holds now, verified.
        files: Roots, targets and lists, in any order; those that hold already change nothing.

    Returns:
        The metadata.

    Raises:
        MetadataError: A file is malformed, or its version does not follow.
    """
    now = before
    parsed = sorted(((*parse_file_name(file.name), file.content.encode()) for file in files),
                    key=lambda item: (item[0] != ROOT, item[1] or 0))  # fmt: skip
    for role, version, data in parsed:
        if role in {SNAPSHOT, TIMESTAMP}:
            continue  # the controller makes them
        if role == ROOT:
            now = _with_root(now, data, version or 0)
        else:
            now = _with_list(now, role, data, version or 0)
    return now


def _with_root(now: Authored, data: bytes, version: int) -> Authored:
    if version <= now.root.signed.version:
        if now.roots[version - 1] != data:
            raise MetadataError(f"version {version} of the root is another one", remedy=AGAIN)
        return now
    root = read(data, Root)
    check_follows(now, root.signed.version)
    found = root.signed.get_root_verification_result(
        now.root.signed, root.signed_bytes, root.signatures
    )
    if not found.verified:
        short = found.first if not found.first.verified else found.second
        raise MetadataError(
            f"version {version} of the root has {len(short.signed)} of {short.threshold} needed "
            "signatures",
            remedy="sign its draft with more root keys: fleet key sign DRAFT --key KEY; a new root "
            "needs those of the root before it and its own",
        )
    made = replace(now, root=root, roots=(*now.roots, data))
    check_same_fleet(now, made)
    check_root(made)
    return made


def _with_list(now: Authored, role: str, data: bytes, version: int) -> Authored:
    if now.content.get(role) == data:
        return now
    metadata = read(data, Targets)
    known = newest(now, role)
    if metadata.signed.version != version or version <= known:
        raise MetadataError(
            f"version {metadata.signed.version} of {role} does not follow version {known}",
            remedy=AGAIN,
        )
    content = {**now.content, role: data}
    if role == TARGETS:
        return without_strays(replace(now, targets=metadata, content=content))
    return replace(now, lists={**now.lists, role: metadata}, content=content)
