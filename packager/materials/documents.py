"""The documents of a package: its bill of materials and its provenance, written together."""

from __future__ import annotations

from packager.materials.bill import bill_bytes
from packager.materials.statement import statement_bytes
from packager.materials.values import Described
from wire.codec import sha256_hex
from wire.package.index import BILL_FILE, PROVENANCE_FILE
from wire.package.manifest import MANIFEST_FILE, manifest_to_bytes


def documents(described: Described) -> dict[str, bytes]:
    """Write the documents of a package.

    Args:
        described: The package and its build.

    Returns:
        The content of each, by its path in the package.
    """
    bill = bill_bytes(described)
    more = {
        MANIFEST_FILE: sha256_hex(manifest_to_bytes(described.manifest)),
        BILL_FILE: sha256_hex(bill),
    }
    return {BILL_FILE: bill, PROVENANCE_FILE: statement_bytes(described, more)}
