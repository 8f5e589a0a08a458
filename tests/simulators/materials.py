"""What is known of a made-up build, for tests of a package's bill of materials and provenance."""

from __future__ import annotations

from pathlib import Path

from packager.licences import Licence
from packager.materials.documents import documents
from packager.materials.values import Described, Given, Making, Tool
from tests.simulators.packages import SignedPackage, package, variant
from wire.codec import sha256_hex
from wire.package.manifest import MANIFEST_FILE, Manifest, manifest_from_bytes

NUMPY = Tool(
    name="numpy", version="2.0.1", purl="pkg:pypi/numpy@2.0.1", licence=Licence(expression="MIT")
)
COMPILER = Tool(name="gcc", version="gcc (D) 12", purl="pkg:generic/gcc@gcc%20%28D%29%2012")
EDGEFLEET = Tool(name="edgefleet", version="0.1.0", purl="pkg:generic/edgefleet@0.1.0")
BEST = variant("best", accuracy=0.99)
SMALL = variant("small", accuracy=0.9)


def making(*, licence: Licence = Licence(), source: str = "a" * 64) -> Making:  # noqa: B008
    """Return what is known of a build of the two variants."""
    return Making(
        edgefleet=EDGEFLEET,
        code_sha256="c" * 64,
        machine="x86_64 a processor",
        given=(
            Given(role="source", sha256=source),
            Given(role="calibration", sha256="1" * 64, form="folder"),
            Given(role="evaluation", sha256="2" * 64, form="function", function="data:made"),
        ),
        tools=(COMPILER, NUMPY),
        made_with={"best": ("numpy",), "small": ("gcc", "numpy")},
        profiles={"bench": "b" * 64},
        parameters={"name": "digits", "model": "source", "profiles": ["bench"], "metric": "top1"},
        licence=licence,
    )


def described(
    made: Making | None = None, *, manifest: Manifest | None = None, more: str = ""
) -> Described:
    """Return a package of the two variants and how it was built."""
    signed = package("1.0.0", [(BEST, b"best"), (SMALL, b"small")])
    told = manifest or manifest_from_bytes(signed.files[MANIFEST_FILE])
    digests = {
        path: sha256_hex(content + more.encode())
        for path, content in signed.files.items()
        if path != MANIFEST_FILE
    }
    return Described(manifest=told, digests=digests, making=made or making())


def documented(changes: dict[str, bytes] | None = None) -> SignedPackage:
    """Make and sign a package that tells of its origin.

    Args:
        changes: Documents that take the place of its own, by path.
    """
    told = documents(described()) | (changes or {})
    return package("1.0.0", [(BEST, b"best"), (SMALL, b"small")], documents=told)


def written(made: SignedPackage, directory: Path) -> Path:
    """Put a package on the disk."""
    made.write_to(directory)
    return directory
