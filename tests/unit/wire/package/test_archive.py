"""A package as one file: its bytes, what is refused, and that nothing else escapes."""

from __future__ import annotations

import io
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.simulators.archives import Held, file_of, joined, members_of
from tests.simulators.packages import STRANGER_KEY, TRUST, desired, package, two_variants, variant
from wire.errors import FleetError, IntegrityError, SignatureError
from wire.package.archive import (
    DESIRED_FILE,
    MAX_ARCHIVE_BYTES,
    MAX_MEMBER_BYTES,
    Archive,
    ArchiveError,
    header,
    open_archive,
)
from wire.package.index import ENVELOPE_FILE
from wire.package.manifest import MANIFEST_FILE

MADE = two_variants("1.0.0")
FILE = file_of(MADE)


def opened(content: bytes) -> Archive:
    held = Held(content)
    return open_archive(held.read, held.size_bytes, TRUST)


def test_it_holds_what_was_put_in() -> None:
    archive = opened(FILE)
    assert archive.envelope == MADE.envelope
    assert archive.index == MADE.index
    assert archive.manifest.name == "digits"
    assert archive.desired is None
    found = {sha256: FILE[m.offset :][: m.size_bytes] for sha256, m in archive.blobs.items()}
    assert found == {e.sha256: MADE.files[e.path] for e in MADE.index.files}


def test_a_desired_state_may_come_with_it() -> None:
    _, envelope = desired(3, MADE)
    assert opened(file_of(MADE, desired=envelope)).desired == envelope


def test_tar_can_read_it() -> None:
    with tarfile.open(fileobj=io.BytesIO(FILE)) as tar:
        members = tar.getmembers()
    assert all(
        m.isreg() and m.mode == 0o644 and (m.uid, m.gid, m.mtime) == (0, 0, 0) for m in members
    )
    assert [m.name for m in members] == [name for name, _ in members_of(MADE)]
    assert members[0].name == ENVELOPE_FILE
    assert members[1].name.endswith(MADE.index.file(MANIFEST_FILE).sha256)


def test_equal_content_is_there_once() -> None:
    twins = package("1.0.0", [(variant("one"), b"same"), (variant("two"), b"same")])
    assert len(opened(file_of(twins)).blobs) == 2


def test_nothing_behind_the_envelope_is_read_without_a_valid_signature() -> None:
    forged = package("1.0.0", [(variant("best"), b"evil")], key=STRANGER_KEY)
    held = Held(file_of(forged))
    with pytest.raises(SignatureError):
        open_archive(held.read, held.size_bytes, TRUST)
    assert max(offset + length for offset, length in held.reads) <= 512 + len(forged.envelope)


def as_tar(*members: tarfile.TarInfo, kind: int = tarfile.USTAR_FORMAT) -> bytes:
    """Return an archive that begins rightly and goes on with other members."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=kind) as tar:
        for member in members:
            tar.addfile(member, io.BytesIO(bytes(member.size)))
    (_, envelope), (manifest_name, manifest) = members_of(MADE)[:2]
    begin = joined([(ENVELOPE_FILE, envelope), (manifest_name, manifest)])
    return begin[:-1024] + buffer.getvalue()


def member(
    name: str, kind: bytes = tarfile.REGTYPE, size: int = 0, link: str = ""
) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.size, info.linkname = kind, size, link
    return info


BLOB = members_of(MADE)[2][0]
HOSTILE = {
    "empty": b"",
    "noise": b"x" * 4096,
    "zeros": bytes(4096),
    "a link": as_tar(member(BLOB, tarfile.SYMTYPE, link="/etc/passwd")),
    "a hard link": as_tar(member(BLOB, tarfile.LNKTYPE, link="../state.json")),
    "a device": as_tar(member(BLOB, tarfile.CHRTYPE)),
    "a pipe": as_tar(member(BLOB, tarfile.FIFOTYPE)),
    "a directory": as_tar(member("blobs", tarfile.DIRTYPE)),
    "a sparse file": as_tar(member(BLOB, tarfile.GNUTYPE_SPARSE)),
    "a path outside": as_tar(member("../../etc/cron.d/x", size=4)),
    "an absolute path": as_tar(member("/etc/cron.d/x", size=4)),
    "a long name": as_tar(member("x" * 150, size=4), kind=tarfile.PAX_FORMAT),
    "another name": joined([*members_of(MADE), ("blobs/../x", b"x")]),
    "a file twice": joined([*members_of(MADE), members_of(MADE)[2]]),
    "a stranger's file": joined([*members_of(MADE), ("blobs/" + "0" * 64, b"x")]),
    "two envelopes": joined([members_of(MADE)[0], *members_of(MADE)]),
    "no envelope": joined(members_of(MADE)[1:]),
    "no manifest": joined(m for n, m in enumerate(members_of(MADE)) if n != 1),
    "only an envelope": joined(members_of(MADE)[:1]),
    "two desired states": joined(
        [members_of(MADE)[0], (DESIRED_FILE, b"{}"), (DESIRED_FILE, b"{}"), *members_of(MADE)[1:]]
    ),
    "another size": joined([*members_of(MADE)[:2], (BLOB, b"longer than it says")]),
    "a size beyond the end": FILE[:-1024] + header(BLOB, MAX_MEMBER_BYTES) + bytes(1024),
    "a huge envelope": header(ENVELOPE_FILE, 2**30) + bytes(4096),
    "something behind the end": FILE + b"x",
    "zeros behind the end": FILE + bytes(512),
    "half an end": FILE[:-512],
    "no end": FILE[:-1024],
}  # fmt: skip


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_anything_else_is_refused_with_a_remedy(content: bytes) -> None:
    with pytest.raises(ArchiveError) as caught:
        opened(content)
    assert "fleet package export" in caught.value.remedy


def test_a_changed_manifest_is_refused() -> None:
    at = FILE.index(MADE.files[MANIFEST_FILE])
    with pytest.raises(IntegrityError, match=r"manifest\.json"):
        opened(FILE[: at + 5] + b"~" + FILE[at + 6 :])


def test_a_file_over_every_limit_is_not_read() -> None:
    def read(_offset: int, _length: int) -> bytes:
        raise AssertionError

    with pytest.raises(ArchiveError, match="over"):
        open_archive(read, MAX_ARCHIVE_BYTES + 1, TRUST)


@given(st.integers(0, len(FILE) - 1), st.integers(1, 255))
def test_a_flipped_byte_is_found_or_lies_in_a_file(at: int, mask: int) -> None:
    content = bytearray(FILE)
    content[at] ^= mask
    try:
        archive = opened(bytes(content))
    except FleetError:
        return
    assert archive.index == MADE.index
    assert archive.manifest == opened(FILE).manifest


@given(st.integers(0, len(FILE) - 1))
def test_a_cut_file_is_refused(length: int) -> None:
    with pytest.raises(FleetError):
        opened(FILE[:length])


@given(st.binary(max_size=3000), st.integers(0, len(FILE) - 1025))
def test_noise_does_no_harm(noise: bytes, at: int) -> None:
    with pytest.raises(FleetError):
        opened(FILE[:at] + noise)
