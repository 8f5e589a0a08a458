"""What clients may register."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.serve.errors import RegionError
from agent.serve.http.shared_memory import REGIONS_EACH, Regions
from tests.simulators.shared_memory import NEEDS_ROOT, STRANGER, shared

ME = os.getuid()
MOST = 4096


def names(regions: Regions, user: int = ME) -> list[str]:
    return [region.name for region in regions.of(user)]


def test_what_is_registered_is_known_until_it_is_unregistered() -> None:
    regions = Regions(MOST)
    with shared(100) as memory:
        regions.register(ME, "a", memory.key, 0, 100)
        regions.register(ME, "b", memory.key.removeprefix("/"), 50, 50)
        assert names(regions) == ["a", "b"]
        regions.unregister(ME, "a")
        assert names(regions) == ["b"]
        regions.unregister(ME, "never registered")
        regions.unregister(ME, None)
        assert names(regions) == []


def test_users_have_regions_of_their_own() -> None:
    regions = Regions(MOST)
    with shared(100) as memory:
        regions.register(ME, "a", memory.key, 0, 100)
        assert names(regions, ME + 1) == []
        regions.unregister(ME + 1, None)
        assert names(regions) == ["a"]


def test_memory_of_another_user_is_refused() -> None:
    with shared(100) as memory, pytest.raises(RegionError, match="does not belong to the client"):
        Regions(MOST).register(ME + 1, "a", memory.key, 0, 100)


@pytest.mark.skipif(os.getuid() != 0, reason=NEEDS_ROOT)
def test_memory_of_another_user_is_refused_to_root_too() -> None:
    with shared(100) as memory:
        os.chown(memory.path, STRANGER, STRANGER)
        with pytest.raises(RegionError, match="does not belong to the client"):
            Regions(MOST).register(ME, "a", memory.key, 0, 100)


def test_memory_that_everybody_may_write_is_refused() -> None:
    with shared(100, mode=0o666) as memory, pytest.raises(RegionError, match="chmod o-w"):
        Regions(MOST).register(ME, "a", memory.key, 0, 100)


def as_link(path: Path) -> None:
    path.symlink_to("/etc/hostname")


def as_pipe(path: Path) -> None:
    os.mkfifo(path, 0o600)


def as_directory(path: Path) -> None:
    path.mkdir()


@pytest.mark.parametrize("make", [as_link, as_pipe, as_directory])
def test_only_regular_files_are_shared_memory(make: Callable[[Path], None]) -> None:
    with shared(0) as memory:
        memory.path.unlink()
        make(memory.path)
        try:
            with pytest.raises(RegionError):
                Regions(MOST).register(ME, "a", memory.key, 0, 1)
        finally:
            is_directory = stat.S_ISDIR(memory.path.lstat().st_mode)
            memory.path.rmdir() if is_directory else memory.path.unlink()


@pytest.mark.parametrize(
    "key",
    ["", "/", ".", "..", "/..", "/../etc/passwd", "a/b", "//a", "/a\0b", "/a\nb", "/" + "x" * 255],
)
def test_a_key_is_one_name(key: str) -> None:
    with pytest.raises(RegionError, match="no name of POSIX shared memory"):
        Regions(MOST).register(ME, "a", key, 0, 1)


def test_what_is_not_there_is_said_to_be_missing() -> None:
    with pytest.raises(RegionError, match="cannot open shared memory '/edgefleet-none'"):
        Regions(MOST).register(ME, "a", "/edgefleet-none", 0, 1)


@pytest.mark.parametrize(("offset", "size"), [(0, 101), (100, 1), (2**62, 1)])
def test_a_region_lies_within_its_object(offset: int, size: int) -> None:
    with shared(100) as memory, pytest.raises(RegionError, match="has 100 bytes"):
        Regions(MOST).register(ME, "a", memory.key, offset, size)


def test_a_region_has_a_greatest_size() -> None:
    with shared(2 * MOST) as memory:
        Regions(MOST).register(ME, "a", memory.key, MOST, MOST)
        with pytest.raises(RegionError, match="may have 4096 bytes"):
            Regions(MOST).register(ME, "a", memory.key, 0, MOST + 1)


def test_a_name_stands_for_one_place() -> None:
    regions = Regions(MOST)
    with shared(100) as memory, shared(100) as other:
        regions.register(ME, "a", memory.key, 0, 50)
        for key, offset, size in ((other.key, 0, 50), (memory.key, 1, 50), (memory.key, 0, 51)):
            with pytest.raises(RegionError, match="unregister it first"):
                regions.register(ME, "a", key, offset, size)
        before = regions.of(ME)
        memory.make(100)
        regions.register(ME, "a", memory.key, 0, 50)  # the client has begun anew
        assert regions.of(ME) != before


def test_there_are_no_more_than_so_many() -> None:
    regions = Regions(MOST)
    with shared(100) as memory:
        for number in range(REGIONS_EACH):
            regions.register(ME, str(number), memory.key, 0, 1)
        with pytest.raises(RegionError, match="32 shared memory regions of this user"):
            regions.register(ME, "one more", memory.key, 0, 1)
        regions.register(ME, "0", memory.key, 0, 1)


def test_what_is_gone_makes_room() -> None:
    regions = Regions(MOST)
    with shared(100) as memory:
        for number in range(REGIONS_EACH):
            regions.register(ME, str(number), memory.key, 0, 1)
        memory.make(100)
        regions.register(ME, "one more", memory.key, 0, 1)
        assert names(regions) == ["one more"]
