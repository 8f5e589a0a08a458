"""Archives that nobody wrote in good faith: each is refused in one line and leaves nothing."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from controller.app.backup import INDEX_NAME, MAX_DEPTH, back_up
from controller.broker.errors import HomeError
from tests.simulators.stack import fleet_here
from tests.simulators.stored_fleet import CLOCK

Files = dict[str, bytes]


def archive(
    files: Files,
    index: dict[str, object],
    headers: dict[str, dict[str, str]] | None = None,
    before: bytes = b"",
) -> bytes:
    """Return an archive whose index and members agree."""
    listed = [
        {"path": name, "size_bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        for name, data in files.items()
    ]
    content = json.dumps({**index, "files": listed}).encode()
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, data in ((INDEX_NAME, content), *files.items()):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            member.pax_headers = (headers or {}).get(name, {})
            tar.addfile(member, io.BytesIO(data))
    return before + stream.getvalue()


def one_file(name: str, data: bytes = b"x", **header: str) -> Callable[..., bytes]:
    headers = {name: {key.replace("_", "."): value for key, value in header.items()}}
    return lambda files, index: archive({**files, name: data}, index, headers)


def settings(change: Callable[[bytes], bytes]) -> Callable[..., bytes]:
    name = "home/controller.toml"
    return lambda files, index: archive({**files, name: change(files[name])}, index)


def at(time_s: float) -> Callable[..., bytes]:
    return lambda files, index: archive(files, {**index, "made_at_s": time_s})


def header(kind: bytes, size: int, data: bytes = b"", *, times: int = 1) -> Callable[..., bytes]:
    member = tarfile.TarInfo("././@LongLink")
    member.type, member.size = kind, size
    block = member.tobuf(tarfile.GNU_FORMAT) + data.ljust(-len(data) % 512 + len(data), b"\0")
    return lambda files, index: archive(files, index, before=block * times)


HOSTILE = {
    "deep": one_file("home/" + "d/" * 2500 + "f"),
    "a little too deep": one_file("home/" + "d/" * (MAX_DEPTH - 1) + "f"),
    "a NUL in a name": one_file("home/a\0b"),
    "a sparse map of no numbers": one_file(
        "home/s", GNU_sparse_map="x,y", GNU_sparse_size="1"
    ),
    "a sparse size of no number": one_file(
        "home/s", b"x" * 600, GNU_sparse_major="1", GNU_sparse_minor="0",
        GNU_sparse_name="home/s", GNU_sparse_realsize="abc",
    ),
    "settings in no text": settings(lambda text: text + b"\n# \xff\xfe"),
    "settings too large": settings(lambda text: text + b"#" * 1024 * 1024),
    "settings that are no TOML": settings(lambda _text: b"[[["),
    "a NUL in the settings": settings(lambda text: text.replace(b".db", b"\\u0000.db")),
    "options of SQLite": settings(lambda text: text.replace(b".db", b".db?uri=true")),
    "a late year": at(1e300),
    "an early year": at(-1e300),
    "long names in a chain": header(tarfile.GNUTYPE_LONGNAME, 1, b"a", times=3000),
    "a header of a negative size": header(tarfile.XHDTYPE, -512),
    "a header of a size beyond all bounds": header(tarfile.XHDTYPE, 1 << 40),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_archive_is_refused(backup: Path, tmp_path: Path, name: str) -> None:
    with tarfile.open(backup) as tar:
        files = {m.name: tar.extractfile(m).read() for m in tar}  # type: ignore[union-attr]  # all are files
    index = json.loads(files.pop(INDEX_NAME))
    (tmp_path / "hostile.tar").write_bytes(HOSTILE[name](files, index))
    before = set(tmp_path.rglob("*"))
    done = fleet_here(
        "controller", "restore", str(tmp_path / "hostile.tar"), str(tmp_path / "again")
    )
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1), done.err
    assert done.err.startswith("fleet: ")
    assert "unfinished" not in done.err
    assert set(tmp_path.rglob("*")) == before


def test_a_file_that_lies_too_deep_is_said_when_it_is_backed_up(home: Path, tmp_path: Path) -> None:
    deep = home.joinpath(*["d"] * (MAX_DEPTH - 1))
    deep.mkdir(parents=True)
    (deep / "f").touch()
    with pytest.raises(HomeError, match="directories deep or more; move it away"):
        back_up(home, tmp_path / "deep.tar", CLOCK)
    assert not (tmp_path / "deep.tar").exists()


def test_a_pipe_where_the_backup_should_be_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    done = fleet_here("controller", "restore", str(tmp_path / "pipe"), str(tmp_path / "again"))
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "it is not a file" in done.err
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]
