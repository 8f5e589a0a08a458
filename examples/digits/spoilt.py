"""A package whose weights are wrong, as a mixed-up checkpoint would make it."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import numpy as np
import onnx
from onnx import numpy_helper

from wire.codec import sha256_hex
from wire.package.index import ENVELOPE_FILE
from wire.package.manifest import MANIFEST_FILE, manifest_from_bytes, manifest_to_bytes
from wire.package.variant import Variant


def spoil(good: Path, bad: Path, version: str) -> None:
    """Copy a package and put wrong weights into its ONNX models.

    The manifest has the digests of the wrong files, else nobody could sign them. The golden sample
    stays that of the good model: this is how a device can tell.

    Args:
        good: The package.
        bad: The copy; not signed.
        version: Its version.
    """
    shutil.copytree(good, bad)
    (bad / ENVELOPE_FILE).unlink()
    for path in sorted(bad.rglob("*.onnx")):
        model = onnx.load(path)
        for tensor in model.graph.initializer:
            values = numpy_helper.to_array(tensor)
            if values.ndim > 1:
                wrong = np.ascontiguousarray(np.flip(values, axis=0))
                tensor.CopyFrom(numpy_helper.from_array(wrong, tensor.name))
        onnx.save(model, path)
    manifest_path = bad / MANIFEST_FILE
    manifest = manifest_from_bytes(manifest_path.read_bytes())
    variants = tuple(_with_digests(variant, bad) for variant in manifest.variants)
    spoilt = msgspec.structs.replace(manifest, version=version, variants=variants)
    manifest_path.write_bytes(manifest_to_bytes(spoilt))


def _with_digests(variant: Variant, package: Path) -> Variant:
    directory = package / variant.directory
    digests = {p: sha256_hex((directory / p).read_bytes()) for p in variant.info.files_sha256 or {}}
    info = msgspec.structs.replace(variant.info, files_sha256=digests)
    return msgspec.structs.replace(variant, info=info)
