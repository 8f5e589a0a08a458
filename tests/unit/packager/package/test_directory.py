"""Packages as directories: same bytes, all or nothing, nothing believed unchecked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from controller.cli.package_files import package_files
from packager.errors import PackageError
from packager.package import staging
from packager.package.directory import load_trust, open_package, seal, signers, write_package
from wire.codec import sha256_hex
from wire.errors import FleetError, IntegrityError, SignatureError
from wire.package.golden import Golden
from wire.package.index import (
    BILL_FILE,
    ENVELOPE_FILE,
    MATERIALS,
    PackageIndex,
    asset_directory,
    asset_uri,
)
from wire.package.manifest import MANIFEST_FILE, Manifest
from wire.package.tensors import TensorSpec
from wire.package.variant import Variant, VariantInfo
from wire.trust.envelope import SigningKey
from wire.trust.root import Role, TrustRoot, encode_key

KEY, OTHER = SigningKey(b"k" * 32), SigningKey(b"o" * 32)
SPEC = TensorSpec(name="t", datatype="FP32", shape=(-1, 3))


def trust(key: SigningKey) -> TrustRoot:
    role = Role(keys=(encode_key(key.public_key),))
    return TrustRoot(release=role, director=Role(keys=(encode_key(b"d" * 32),)))


def write(
    output: Path, *, key: SigningKey | None = KEY, content: bytes = b"model", force: bool = False
) -> PackageIndex:
    output.parent.mkdir(parents=True, exist_ok=True)
    source = output.parent / "source.bin"
    source.write_bytes(content)
    info = VariantInfo(
        runtime="null",
        precision="x",
        model_file="m.bin",
        inputs=(SPEC,),
        outputs=(SPEC,),
        size_bytes=5,
    )
    manifest = Manifest(
        name="demo", version="1", variants=(Variant(name="v", directory="v", info=info),)
    )
    return write_package(output, manifest, {"v/m.bin": source}, key=key, force=force)


def write_measured(output: Path) -> None:
    """Write an unsigned package whose manifest says which files its figures are of."""
    output.parent.mkdir(parents=True, exist_ok=True)
    samples = {"input.t.npy": b"in", "output.t.npy": b"out"}
    files = {"v/m.bin": b"model", "v/m.data": b"weights"}
    asset = asset_uri(samples)
    files |= {f"{asset_directory(asset)}/{name}": data for name, data in samples.items()}
    sources = {}
    for number, (path, data) in enumerate(files.items()):
        sources[path] = output.parent / f"source-{number}"
        sources[path].write_bytes(data)
    info = VariantInfo(
        runtime="null",
        precision="x",
        model_file="m.bin",
        inputs=(SPEC,),
        outputs=(SPEC,),
        size_bytes=12,
        golden=Golden(asset=asset, samples=1, tolerances={}),
        files_sha256={name: sha256_hex(files[f"v/{name}"]) for name in ("m.bin", "m.data")},
    )
    manifest = Manifest(
        name="demo", version="1", variants=(Variant(name="v", directory="v", info=info),)
    )
    write_package(output, manifest, sources, key=None)


def test_a_package_tells_of_its_origin_and_no_device_fetches_that(tmp_path: Path) -> None:
    write_measured(tmp_path / "before")
    manifest, _ = open_package(tmp_path / "before")
    files: dict[str, Path | bytes] = {
        path: tmp_path / "before" / path
        for path in contents(tmp_path / "before")
        if path != MANIFEST_FILE
    }
    files |= {path: path.encode() for path in MATERIALS}
    index = write_package(tmp_path / "p", manifest, files, key=KEY)
    assert contents(tmp_path / "p")[BILL_FILE] == BILL_FILE.encode()
    assert open_package(tmp_path / "p", trust=trust(KEY))[1] == index
    fetched = {entry.path for entry in index.files_for(manifest.variants)}
    assert {entry.path for entry in index.files} - fetched == MATERIALS
    (tmp_path / "p" / BILL_FILE).write_bytes(b"another")
    with pytest.raises(IntegrityError, match=f"{BILL_FILE} was changed"):
        open_package(tmp_path / "p")


def contents(directory: Path) -> dict[str, bytes]:
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


def test_equal_packages_have_equal_bytes(tmp_path: Path) -> None:
    first, second = write(tmp_path / "a" / "p"), write(tmp_path / "b" / "q")
    assert first.digest == second.digest
    assert contents(tmp_path / "a" / "p") == contents(tmp_path / "b" / "q")
    assert sorted(contents(tmp_path / "a" / "p")) == ["manifest.json", ENVELOPE_FILE, "v/m.bin"]


def test_a_signed_package_opens_with_its_trust_root_only(tmp_path: Path) -> None:
    index = write(tmp_path / "p")
    manifest, opened = open_package(tmp_path / "p", trust=trust(KEY))
    assert manifest.name == "demo"
    assert opened == index
    assert signers(tmp_path / "p") == (KEY.keyid,)
    with pytest.raises(SignatureError):
        open_package(tmp_path / "p", trust=trust(OTHER))


def test_an_unsigned_package_opens_only_where_no_signature_is_asked_for(tmp_path: Path) -> None:
    write(tmp_path / "p", key=None)
    assert open_package(tmp_path / "p")[1].files
    assert signers(tmp_path / "p") == ()
    with pytest.raises(SignatureError, match="not signed"):
        open_package(tmp_path / "p", trust=trust(KEY))
    seal(tmp_path / "p", KEY)
    open_package(tmp_path / "p", trust=trust(KEY))


def test_an_unsigned_package_is_called_that_where_it_is_opened_or_published(
    tmp_path: Path,
) -> None:
    write(tmp_path / "p", key=None)
    readers: list[Callable[[], object]] = [
        lambda: open_package(tmp_path / "p", trust=trust(KEY)),
        lambda: package_files(tmp_path / "p"),
    ]
    for read in readers:
        with pytest.raises(FleetError) as caught:
            read()
        assert str(caught.value) == (
            f"{tmp_path}/p is not signed; sign it with: fleet package sign {tmp_path}/p --key FILE"
        )


def test_sealing_twice_changes_nothing(tmp_path: Path) -> None:
    write(tmp_path / "p")
    before = contents(tmp_path / "p")
    seal(tmp_path / "p", KEY)
    assert contents(tmp_path / "p") == before


def test_a_changed_missing_or_additional_file_is_found(tmp_path: Path) -> None:
    write(tmp_path / "p")
    model = tmp_path / "p" / "v" / "m.bin"
    model.write_bytes(b"modeL")
    with pytest.raises(IntegrityError, match=r"v/m\.bin was changed"):
        open_package(tmp_path / "p")
    model.unlink()
    with pytest.raises(IntegrityError, match=r"v/m\.bin is missing"):
        open_package(tmp_path / "p")
    model.write_bytes(b"model")
    (tmp_path / "p" / "extra").write_bytes(b"")
    with pytest.raises(IntegrityError, match="extra does not belong"):
        open_package(tmp_path / "p")


def test_a_link_is_no_part_of_a_package(tmp_path: Path) -> None:
    write(tmp_path / "p")
    (tmp_path / "p" / "v" / "link").symlink_to("/etc/passwd")
    with pytest.raises(PackageError, match="neither a plain file"):
        seal(tmp_path / "p", KEY)


def test_only_a_package_is_replaced_and_only_when_asked(tmp_path: Path) -> None:
    write(tmp_path / "p")
    with pytest.raises(PackageError, match="exists already"):
        write(tmp_path / "p")
    index = write(tmp_path / "p", content=b"other", force=True)
    assert open_package(tmp_path / "p", trust=trust(KEY))[1] == index
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter.txt").write_text("dear")
    with pytest.raises(PackageError, match="is not a package"):
        write(tmp_path / "home", force=True)
    assert not list(tmp_path.glob(".*")), "nothing half-made is left"


def test_what_is_no_package_is_one_clear_fault(tmp_path: Path) -> None:
    with pytest.raises(PackageError, match=r"is not a package: manifest\.json"):
        open_package(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{", b"\x80\x04", b"[1]"])
def test_a_broken_manifest_is_named_with_its_package(tmp_path: Path, content: bytes) -> None:
    write(tmp_path / "p", key=None)
    (tmp_path / "p" / MANIFEST_FILE).write_bytes(content)
    for use in (open_package, lambda path: seal(path, KEY)):
        with pytest.raises(PackageError, match=r"p is not a package: manifest\.json: ") as caught:
            use(tmp_path / "p")
        assert "_Layout" not in str(caught.value)


def test_an_unsigned_package_without_a_model_is_neither_opened_nor_signed(tmp_path: Path) -> None:
    write(tmp_path / "p", key=None)
    (tmp_path / "p" / "v" / "m.bin").unlink()
    for use in (open_package, lambda path: seal(path, KEY)):
        with pytest.raises(PackageError, match=r"p lacks v/m\.bin"):
            use(tmp_path / "p")


@pytest.mark.parametrize(
    ("content", "text"),
    [(b"", "is not a signature"), (b"{}", "is not a signature"), (bytes(2**25), "is over ")],
)
def test_a_broken_signature_is_named(tmp_path: Path, content: bytes, text: str) -> None:
    write(tmp_path / "p")
    (tmp_path / "p" / ENVELOPE_FILE).write_bytes(content)
    for use in (open_package, signers, lambda path: open_package(path, trust=trust(KEY))):
        with pytest.raises(PackageError, match=rf"package\.dsse\.json {text}"):
            use(tmp_path / "p")


def test_what_is_no_trust_root_is_named(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_bytes(b"name = 3")
    with pytest.raises(PackageError, match=r"t\.json is not a trust root: "):
        load_trust(tmp_path / "t.json")
    with pytest.raises(PackageError, match="/dev/zero cannot be read: it is not a file"):
        load_trust(Path("/dev/zero"))


def test_a_package_that_cannot_be_put_in_its_place_leaves_the_old_one(tmp_path: Path) -> None:
    before = write(tmp_path / "p")
    with pytest.raises(OSError, match="Invalid argument"):
        staging._replace(tmp_path, tmp_path / "p")  # a directory cannot be moved into itself
    assert open_package(tmp_path / "p")[1] == before


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (
            lambda package: (package / "v" / "m.bin").write_bytes(b"modeL"),
            "v/m.bin is not the file that the figures of v were measured on",
        ),
        (lambda package: (package / "v" / "m.data").unlink(), "v/m.data is missing"),
        (lambda package: (package / "v" / "new").touch(), "v/new does not belong to the package"),
        (lambda package: (package / "new").touch(), "new does not belong to the package"),
        (
            lambda package: (
                (package / BILL_FILE).parent.mkdir() or (package / "materials/x").touch()
            ),
            "materials/x does not belong to the package",
        ),
        (
            lambda package: next(package.rglob("input.t.npy")).write_bytes(b"IN"),
            "the golden samples in .* are not those of the package",
        ),
    ],
)
def test_figures_are_never_shown_or_signed_beside_files_that_they_are_not_of(
    tmp_path: Path, change: Callable[[Path], object], fault: str
) -> None:
    write_measured(tmp_path / "p")
    open_package(tmp_path / "p")
    change(tmp_path / "p")
    for read in (lambda: open_package(tmp_path / "p"), lambda: seal(tmp_path / "p", KEY)):
        with pytest.raises(IntegrityError, match=fault):
            read()
    assert not (tmp_path / "p" / ENVELOPE_FILE).exists()


def test_what_was_changed_after_a_signature_is_not_signed_again(tmp_path: Path) -> None:
    write_measured(tmp_path / "p")
    seal(tmp_path / "p", KEY)
    manifest = tmp_path / "p" / MANIFEST_FILE
    manifest.write_bytes(manifest.read_bytes().replace(b'"x"', b'"y"'))
    before = contents(tmp_path / "p")
    with pytest.raises(IntegrityError, match=r"manifest.json was changed after"):
        seal(tmp_path / "p", OTHER)
    assert contents(tmp_path / "p") == before


def test_files_that_changed_since_they_were_measured_are_not_written(tmp_path: Path) -> None:
    write_measured(tmp_path / "p")
    manifest, _ = open_package(tmp_path / "p")
    other = tmp_path / "other"
    other.write_bytes(b"modeL")
    with pytest.raises(IntegrityError, match=r"v/m.bin is not the file"):
        write_package(tmp_path / "q", manifest, {"v/m.bin": other}, key=KEY)
    assert not (tmp_path / "q").exists()
