"""From which file a delta begins, how it is cut, and which one goes first."""

from __future__ import annotations

import hashlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.domain.alike import MAX_LOOKED
from controller.domain.deltas import (
    EMPTY,
    MAX_BASES,
    MAX_CHUNK_BYTES,
    MAX_FILE_BYTES,
    MAX_WAIT_S,
    MIN_FILE_BYTES,
    MIN_WAIT_S,
    Kept,
    Package,
    ahead,
    beside,
    chunk_bytes_of,
    to_remove,
    wait_s,
    ways,
)
from tests.simulators.packages import PROFILE, variant
from wire.codec import sha256_hex
from wire.delivery import MAX_DELTA_CHUNKS
from wire.package.index import CHUNK_BYTES, FileEntry, PackageIndex
from wire.package.manifest import Manifest
from wire.package.variant import Variant
from wire.profile import DeviceProfile

MIB = 1024**2


def entry(path: str, content: str, size_bytes: int = MIB) -> FileEntry:
    return FileEntry(
        path=path, size_bytes=size_bytes, sha256=sha256_hex(content.encode()), chunks=()
    )


def made(name: str, *files: FileEntry, variants: tuple[Variant, ...] = ()) -> Package:
    index = PackageIndex(name=name, version="1", files=files)
    return Package(index=index, manifest=Manifest(name=name, version="1", variants=variants))


def of(folder: str, runtime: str = "null", name: str = "") -> Variant:
    """Return a variant in a directory."""
    found = variant(name or folder)
    info = msgspec.structs.replace(found.info, runtime=runtime)
    return msgspec.structs.replace(found, directory=folder, info=info)


def bases_of(
    target: Package, content: str, *bases: Package, profile: DeviceProfile | None = None
) -> list[str]:
    """Return the paths of the files to begin from; `-` for no bytes."""
    found = ways(target, sha256_hex(content.encode()), bases, profile)
    return [way.base.path if way.base else "-" for way in found]


TARGET = made("m", entry("a/w.onnx", "new"), variants=(of("a"),))


def test_no_bytes_are_what_their_digest_says() -> None:
    assert hashlib.sha256(b"").hexdigest() == EMPTY


def test_the_same_path_comes_first_then_the_variant_of_the_same_name_then_what_is_alike() -> None:
    alike = entry("z/w.onnx", "alike")
    named = entry("old/w.onnx", "named", 3 * MIB)
    same = entry("a/w.onnx", "same", 9 * MIB)
    variants = (of("a", name="x"), of("old", name="a"), of("z"))
    assert bases_of(TARGET, "new", made("m", alike, named, same, variants=variants)) == [
        "a/w.onnx",
        "-",
    ]
    assert bases_of(TARGET, "new", made("m", alike, named, variants=variants)) == [
        "old/w.onnx",
        "-",
    ]
    assert bases_of(TARGET, "new", made("m", alike, variants=variants)) == ["z/w.onnx", "-"]


def test_of_files_that_are_alike_the_runtime_counts_before_the_size() -> None:
    near = entry("b/w.onnx", "near", MIB + 1)
    far = entry("c/w.onnx", "far", 3 * MIB)
    base = made("m", near, far, variants=(of("b", "openvino"), of("c")))
    assert bases_of(TARGET, "new", base) == ["c/w.onnx", "-"]


@pytest.mark.parametrize(
    "other",
    [
        entry("b/w.onnx", "x", 5 * MIB),  # over four times as large
        entry("b/w.onnx", "x", 0),
        entry("b/w.xml", "x"),  # another kind of file
        entry("shared_assets/w.onnx", "x"),  # of no variant
        entry("a/w.onnx", "x", MAX_FILE_BYTES + 1),
    ],
)
def test_from_what_is_not_alike_no_delta_begins(other: FileEntry) -> None:
    assert bases_of(TARGET, "new", made("m", other, variants=(of("b"),))) == ["-"]


def test_nor_from_a_package_of_another_name() -> None:
    assert bases_of(
        TARGET, "new", made("other", entry("a/w.onnx", "old"), variants=(of("a"),))
    ) == ["-"]


def test_nor_from_a_variant_that_the_device_does_not_keep() -> None:
    base = made("m", entry("a/w.onnx", "old"), variants=(of("a", "openvino"),))
    assert PROFILE.runtimes == ("null",)
    assert bases_of(TARGET, "new", base, profile=PROFILE) == ["-"]
    assert bases_of(TARGET, "new", base) == ["a/w.onnx", "-"]


@pytest.mark.parametrize("size_bytes", [0, MIN_FILE_BYTES - 1, MAX_FILE_BYTES + 1])
def test_to_a_file_that_is_too_small_or_too_large_there_is_none(size_bytes: int) -> None:
    target = made("m", entry("a/w.onnx", "new", size_bytes), variants=(of("a"),))
    base = made("m", entry("a/w.onnx", "old"), variants=(of("a"),))
    assert ways(target, sha256_hex(b"new"), (base,), None) == ()


def test_nor_to_a_file_of_another_package() -> None:
    assert ways(TARGET, sha256_hex(b"strange"), (), None) == ()


PATHS = st.sampled_from(["a/w.onnx", "b/w.onnx", "b/v.onnx", "c/w.xml", "free.bin", "d/e/w.onnx"])
FILES = st.dictionaries(
    PATHS, st.tuples(st.sampled_from("opqrs"), st.integers(0, 8 * MIB)), min_size=1
)
VARIANTS = st.lists(
    st.tuples(st.sampled_from("abcd"), st.sampled_from(["null", "openvino"])),
    unique_by=lambda pair: pair[0],
    max_size=4,
)


@st.composite
def packages(draw: st.DrawFn) -> Package:
    # Equal contents have equal sizes.
    files = [entry(path, f"{c}{size}", size) for path, (c, size) in draw(FILES).items()]
    variants = tuple(of(folder, runtime) for folder, runtime in draw(VARIANTS))
    return made(draw(st.sampled_from(["m", "n"])), *files, variants=variants)


@given(packages(), st.lists(packages(), max_size=4), st.sampled_from([None, PROFILE]))
def test_whatever_the_packages_are(
    target: Package, bases: list[Package], profile: DeviceProfile | None
) -> None:
    for wanted in target.index.files:
        found = ways(target, wanted.sha256, bases, profile)
        if not MIN_FILE_BYTES <= wanted.size_bytes <= MAX_FILE_BYTES:
            assert found == ()
            continue
        assert 1 <= len(found) <= MAX_BASES + 1
        assert [way.base for way in found].count(None) == 1
        assert found[-1].base is None
        for way in found:
            assert way.target.sha256 == wanted.sha256 != way.pair[0]
            if way.base is not None and way.base_package is not None:
                assert way.base in way.base_package.files_on(profile)
                assert way.base_package.index.name == target.index.name


@given(packages(), st.none() | packages(), st.sampled_from([None, PROFILE]))
def test_ahead_is_made_what_the_device_will_ask_for(
    target: Package, base: Package | None, profile: DeviceProfile | None
) -> None:
    has = {e.sha256 for e in base.files_on(profile)} if base else set()
    lacks = {e.sha256 for e in target.files_on(profile)} - has
    for way in ahead(target, base, profile):
        assert way.target.sha256 in lacks
        assert way == ways(target, way.target.sha256, (base,) if base else (), profile)[0]


def test_what_describes_a_file_lies_beside_it() -> None:
    files = [entry(f"a/{n}", n) for n in ("w.bin", "w.xml", "note.txt")]
    package = made("m", *files, entry("b/w.xml", "b"), entry("a/big.onnx", "c", 65 * MIB))
    assert [each.path for each in beside(package, "a/w.bin")] == ["a/w.xml"]


@given(st.integers(1, MAX_FILE_BYTES))
def test_the_chunks_of_a_delta_fit_into_an_answer(size_bytes: int) -> None:
    chunk_bytes = chunk_bytes_of(size_bytes)
    if chunk_bytes is None:
        assert size_bytes > MAX_DELTA_CHUNKS * MAX_CHUNK_BYTES
    else:
        assert CHUNK_BYTES <= chunk_bytes <= MAX_CHUNK_BYTES
        assert -(-size_bytes // chunk_bytes) <= MAX_DELTA_CHUNKS
        assert chunk_bytes == CHUNK_BYTES or size_bytes > chunk_bytes


@given(
    st.lists(st.integers(0, 2**40), max_size=20),
    st.floats(1, 1e12),
    st.floats(0, 1e9),
)
def test_a_device_asks_again_in_bounded_time(
    work: list[int], bytes_per_s: float, passed_s: float
) -> None:
    assert MIN_WAIT_S <= wait_s(work, bytes_per_s, passed_s) <= MAX_WAIT_S


KEPT = st.lists(
    st.builds(
        Kept,
        st.tuples(st.text("ab", min_size=1), st.text("cd", min_size=1)),
        st.just(""),
        st.integers(1, 100),
        st.floats(0, 10),
    ),
    unique_by=lambda each: each.pair,
)


@given(KEPT, st.integers(0, 500))
def test_no_more_goes_than_must_and_what_was_used_last_stays(
    kept: list[Kept], keep_bytes: int
) -> None:
    gone = to_remove(kept, keep_bytes)
    stays = [each for each in kept if each not in gone]
    left_bytes = sum(each.size_bytes for each in stays)
    assert left_bytes <= keep_bytes
    if gone:
        assert left_bytes + gone[-1].size_bytes > keep_bytes
    if gone and stays:
        assert max(g.used_at_s for g in gone) <= min(s.used_at_s for s in stays)


def test_in_large_packages_few_files_are_looked_at_for_each() -> None:
    old = [entry(f"a/{n}.bin", f"old{n}", MIB + n) for n in range(4000)]
    new = [entry(f"b/{n}.bin", f"new{n}", MIB + n) for n in range(4000)]
    package = made("m", *new, variants=(of("b"),))
    base = made("m", *old, variants=(of("a"),))
    looked: list[FileEntry] = []

    def is_fit(found: FileEntry) -> bool:
        looked.append(found)
        return False

    place = package.files.place("b/2000.bin")
    assert base.files.most_like(new[2000], place, is_fit) is None
    assert len(looked) == 2 * MAX_LOOKED
    found = list(ahead(package, base, None))
    assert [way.base.path for way in found if way.base] == [each.path for each in old]
