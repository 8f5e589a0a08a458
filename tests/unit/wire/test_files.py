"""Durable files: old or new, never half, however a write ends and however many write."""

from __future__ import annotations

import errno
import os
import resource
import signal
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from wire.files import (
    PUBLIC,
    make_directory,
    open_file,
    read_regular,
    remedy_of,
    write_atomic,
    write_named,
    write_new,
)


@pytest.fixture
def small_files() -> Iterator[None]:
    """Let no file of this process grow beyond a kibibyte: a real failing write, without root."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    for content in (b"old and long", b"new"):
        write_atomic(tmp_path / "file", content, mode=PUBLIC)
        assert (tmp_path / "file").read_bytes() == content
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o644
    assert names(tmp_path) == ["file"]


def test_files_are_private_unless_asked_otherwise(tmp_path: Path) -> None:
    write_atomic(tmp_path / "secret", b"x")
    assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0o600


def test_only_a_file_is_replaced_where_a_person_names_one(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"other")
    (tmp_path / "link").symlink_to("other")
    (tmp_path / "dangling").symlink_to("nothing")
    os.mkfifo(tmp_path / "pipe")
    before = names(tmp_path)
    for name, said in (
        ("link", "it is a link"), ("dangling", "it is a link"), ("pipe", "it is not a file"),
    ):  # fmt: skip
        with pytest.raises(OSError, match=said):
            write_named(tmp_path / name, b"new")
    assert names(tmp_path) == before
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "pipe").is_fifo()
    write_named(tmp_path / "other", b"new")
    assert (tmp_path / "link").read_bytes() == b"new"


def test_what_is_open_already_is_written_and_not_replaced(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:
        log.write(b"old ")
        log.flush()
        write_named(Path(f"/dev/fd/{log.fileno()}"), b"new")
    assert (tmp_path / "log").read_bytes() == b"old new"
    with pytest.raises(OSError, match="Bad file descriptor"):
        write_named(Path("/proc/self/fd/999999"), b"new")


def test_a_left_over_temporary_file_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / ".file.new").write_bytes(b"half of something long")
    write_atomic(tmp_path / "file", b"whole")
    assert (tmp_path / "file").read_bytes() == b"whole"
    assert names(tmp_path) == ["file"]


def test_a_planted_link_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    (tmp_path / ".file.new").symlink_to(victim)
    write_atomic(tmp_path / "file", b"new")
    assert victim.read_bytes() == b"precious"
    assert not (tmp_path / "file").is_symlink()
    assert (tmp_path / "file").read_bytes() == b"new"


@pytest.mark.parametrize("has_reader", [False, True])
@pytest.mark.parametrize("place", ["file", ".file.new"])
def test_nobody_waits_on_a_pipe_in_the_place_of_a_file(
    tmp_path: Path, place: str, *, has_reader: bool
) -> None:
    os.mkfifo(tmp_path / place)
    reader = os.open(tmp_path / place, os.O_RDONLY | os.O_NONBLOCK) if has_reader else None
    write_atomic(tmp_path / "file", b"new")
    assert read_regular(tmp_path / "file", 100) == b"new"
    assert names(tmp_path) == ["file"]
    if reader is not None:
        assert os.read(reader, 10) == b"", "nothing is written into it"
        os.close(reader)


def test_only_a_regular_file_is_read_and_no_more_of_it_than_asked(tmp_path: Path) -> None:
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(1 << 40)
    (tmp_path / "link").symlink_to("huge")
    assert read_regular(tmp_path / "link", 7) == b"\0" * 7
    os.mkfifo(tmp_path / "pipe")
    for other in (tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        with pytest.raises(OSError, match=r"not a file|Is a directory"):
            read_regular(other, 7)
    with pytest.raises(FileNotFoundError):
        read_regular(tmp_path / "missing", 7)


@pytest.mark.usefixtures("small_files")
def test_a_write_that_fails_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    write_atomic(tmp_path / "file", b"old")
    with pytest.raises(OSError, match="File too large"):
        write_atomic(tmp_path / "file", b"n" * 5000)
    assert (tmp_path / "file").read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


def test_of_many_writers_at_once_one_wins_whole(tmp_path: Path) -> None:
    contents = [bytes([number]) * (10_000 + 1000 * number) for number in range(8)]
    with ThreadPoolExecutor(8) as writers:
        for content in contents * 10:
            writers.submit(write_atomic, tmp_path / "file", content)
    assert (tmp_path / "file").read_bytes() in contents
    assert names(tmp_path) == ["file"]


def test_a_new_file_is_private_from_the_beginning_and_replaces_nothing(tmp_path: Path) -> None:
    path = tmp_path / "f"
    write_new(path, b"secret", mode=0o600)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(FileExistsError):
        write_new(path, b"other")
    assert path.read_bytes() == b"secret"


@pytest.mark.usefixtures("small_files")
def test_a_new_file_that_does_not_fit_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="File too large"):
        write_new(tmp_path / "f", bytes(5000))
    assert not names(tmp_path)


def test_only_a_plain_file_of_a_person_is_opened(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to("file")
    for name in ("file", "link"):
        with open_file(tmp_path / name) as stream:
            assert stream.read() == b"content"
    os.mkfifo(tmp_path / "pipe")  # nobody writes to it
    for path in (tmp_path / "pipe", Path("/dev/null")):
        with pytest.raises(OSError, match="it is not a file"):
            open_file(path)
    for path in (tmp_path, Path(f"/dev/fd/{os.open(tmp_path, os.O_RDONLY)}")):
        with pytest.raises(IsADirectoryError):
            open_file(path)
    os.close(int(path.name))


def test_a_pipe_that_the_caller_opened_is_waited_for() -> None:
    reading, writing = os.pipe()
    with open_file(Path(f"/dev/fd/{reading}")) as stream, ThreadPoolExecutor(1) as pool:
        content = pool.submit(stream.read)  # nothing is there yet
        os.write(writing, b"secret")
        os.close(writing)
        assert content.result() == b"secret"
    os.close(reading)


def test_a_directory_is_made_with_those_above_it_and_stays_as_it_is(tmp_path: Path) -> None:
    place = tmp_path / "a" / "b" / "c"
    make_directory(place)
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    assert stat.S_IMODE(place.parent.stat().st_mode) & 0o700 == 0o700
    (place / "kept").touch()
    make_directory(place, mode=0o755)
    assert names(place) == ["kept"]
    assert stat.S_IMODE(place.stat().st_mode) == 0o700


def test_no_directory_is_made_where_a_file_is(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        make_directory(tmp_path / "file")
    with pytest.raises(OSError, match="file"):
        make_directory(tmp_path / "file" / "below")


@pytest.mark.parametrize(
    ("number", "remedy"),
    [(errno.ENOSPC, "free"), (errno.EDQUOT, "free"), (errno.EROFS, "mount"), (errno.EACCES, "ask")],
)
def test_a_full_disk_is_not_answered_with_a_word_on_rights(number: int, remedy: str) -> None:
    assert remedy_of(OSError(number, "x"), "ask").startswith(remedy)
