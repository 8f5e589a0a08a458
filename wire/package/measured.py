"""Checks that the files of a package are those that its figures were measured on.

Rules:
- Pure: it compares a manifest with an index, which names the files that are there.
- A variant without digests was made before there were any: nothing is known of its files.
"""

from __future__ import annotations

from typing import Final

import msgspec

from wire.codec import sha256_hex
from wire.errors import IntegrityError
from wire.package.index import MATERIALS, PackageIndex, asset_directory
from wire.package.manifest import MANIFEST_FILE, Manifest
from wire.package.variant import Variant

_AGAIN: Final = "copy, download or build the package again"


def check_measured(manifest: Manifest, index: PackageIndex) -> None:
    """Refuse files that are not those that the manifest's figures are of.

    Args:
        manifest: The manifest of the package.
        index: Every file that is there, with its digest.

    Raises:
        IntegrityError: A file is missing, was changed, or belongs to no variant; it is named.
    """
    known = [v for v in manifest.variants if v.info.files_sha256 is not msgspec.UNSET]
    found = {entry.path: entry.sha256 for entry in index.files}
    allowed = {MANIFEST_FILE, *MATERIALS}
    for variant in known:
        allowed |= _check_variant(variant, found)
    for uri in sorted({v.info.golden.asset for v in known if v.info.golden}):
        allowed |= _check_asset(uri, found)
    if len(known) < len(manifest.variants):
        return
    for path in sorted(found.keys() - allowed):
        raise IntegrityError(f"{path} does not belong to the package", remedy=_AGAIN)


def _check_variant(variant: Variant, found: dict[str, str]) -> set[str]:
    digests = variant.info.files_sha256 or {}
    expected = {f"{variant.directory}/{path}": digest for path, digest in digests.items()}
    for path, digest in sorted(expected.items()):
        if path not in found:
            raise IntegrityError(f"{path} is missing from the package", remedy=_AGAIN)
        if found[path] != digest:
            raise IntegrityError(
                f"{path} is not the file that the figures of {variant.name} were measured on",
                remedy=_AGAIN,
            )
    return set(expected)


def _check_asset(uri: str, found: dict[str, str]) -> set[str]:
    prefix = f"{asset_directory(uri)}/"
    paths = sorted(path for path in found if path.startswith(prefix))
    lines = "".join(f"{found[path]}  {path.removeprefix(prefix)}\n" for path in paths)
    if uri != f"sha256:{sha256_hex(lines.encode())}":
        raise IntegrityError(
            f"the golden samples in {prefix} are not those of the package", remedy=_AGAIN
        )
    return set(paths)
