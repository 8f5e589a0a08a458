"""A delta that a process of its own applies: its exit statuses, its memory, and what it imports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.simulators.deltas import whole
from tests.simulators.patience import PATIENCE_S
from wire.delta import layout
from wire.delta.encode import encode
from wire.delta.zstd import compress

MIB = 1024**2
MEASURED = """
import sys
from pathlib import Path
from wire.delta.__main__ import main

def peak_kib():
    # Unlike getrusage's, it counts from this program's start and not from its parent's.
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))

before = peak_kib()
status = main(sys.argv[1:])
print(status, peak_kib() - before, "numpy" in sys.modules)
"""
WITHOUT_NUMPY = "import sys; sys.modules['numpy'] = None\n"


def run(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "wire.delta", "old", "delta", "new", *more],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )


def measured(folder: Path, before: str = "") -> tuple[int, float, bool]:
    """Return the exit status, the mebibytes that it took above its start, and if it took NumPy."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", before + MEASURED, "old", "delta", "new"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    )
    status, kibibytes, numpy = done.stdout.split()
    return int(status), int(kibibytes) / 1024, numpy == "True"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Lay out an old file, a new one and the delta between them."""
    old = np.random.default_rng(1).standard_normal(20_000).astype("<f4")
    new = (old * np.float32(1.0001)).tobytes()
    delta = encode(old.tobytes(), new, old_places=whole(new, "f4"), new_places=whole(new, "f4"))
    (tmp_path / "old").write_bytes(old.tobytes())
    (tmp_path / "delta").write_bytes(delta)
    (tmp_path / "expected").write_bytes(new)
    return tmp_path


def test_it_ends_with_0_and_the_new_file(files: Path) -> None:
    done = run(files)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (files / "new").read_bytes() == (files / "expected").read_bytes()
    assert {path.name for path in files.iterdir()} == {"old", "delta", "new", "expected"}


def test_it_works_without_numpy(files: Path) -> None:
    assert measured(files, WITHOUT_NUMPY)[0] == 0
    assert (files / "new").read_bytes() == (files / "expected").read_bytes()


@pytest.mark.parametrize(
    ("damaged", "text"),
    [("old", "another version of the file; send the whole file"), ("delta", "not a delta")],
)
def test_it_ends_with_1_when_the_whole_file_is_needed(files: Path, damaged: str, text: str) -> None:
    (files / damaged).write_bytes(b"something else")
    done = run(files)
    assert done.returncode == 1
    assert text in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (files / "new").exists()


def test_it_ends_with_1_over_the_limit(files: Path) -> None:
    assert run(files, "--limit-bytes", "80000").returncode == 0
    assert run(files, "--limit-bytes", "79999").returncode == 1


def test_it_ends_with_2_when_this_machine_is_at_fault(files: Path) -> None:
    (files / "old").unlink()
    done = run(files)
    assert done.returncode == 2
    assert done.stderr == "wire.delta: old: No such file or directory\n"
    assert run(files, "one too many").returncode == 2


def test_its_memory_does_not_grow_with_the_files(tmp_path: Path) -> None:
    tile = np.random.default_rng(2).standard_normal(4 * MIB // 4).astype("<f4")
    old = tile.tobytes() * 24
    new = (tile * np.float32(1.0001)).tobytes() * 24
    delta = encode(old, new, old_places=whole(new, "f4"), new_places=whole(new, "f4"))
    (tmp_path / "old").write_bytes(old)
    (tmp_path / "delta").write_bytes(delta)
    status, mebibytes, numpy = measured(tmp_path)
    assert (status, numpy) == (0, True)
    assert (tmp_path / "new").read_bytes() == new
    assert mebibytes < 64  # NumPy itself takes some 20


def test_a_bomb_does_not_take_its_memory_either(tmp_path: Path) -> None:
    (tmp_path / "old").write_bytes(b"")
    bomb = compress(bytes(256 * MIB))
    header = layout.PRELUDE.pack(layout.MAGIC, layout.VERSION, len(bomb), layout.MAX_HEADER_BYTES)
    (tmp_path / "delta").write_bytes(header + bomb)
    status, mebibytes, numpy = measured(tmp_path)
    assert (status, numpy) == (1, False)
    assert mebibytes < 24


def test_a_delta_of_copies_needs_no_numpy(tmp_path: Path) -> None:
    content = np.random.default_rng(3).bytes(MIB)
    (tmp_path / "old").write_bytes(content)
    (tmp_path / "delta").write_bytes(encode(content, content[MIB // 2 :] + b"more"))
    status, mebibytes, numpy = measured(tmp_path)
    assert (status, numpy) == (0, False)
    assert mebibytes < 24
