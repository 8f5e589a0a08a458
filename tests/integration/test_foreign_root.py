"""What runs a program for another processor changes nothing here and leaves nothing."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from tests.simulators import foreign_root
from tests.simulators.patience import PATIENCE_S, until

COMPILER = "aarch64-linux-gnu-gcc"
TABLE = Path("/proc/sys/fs/binfmt_misc")
PROGRAM = """
#include <stdio.h>
#include <stdlib.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>
#include <sys/utsname.h>
#include <unistd.h>
int main(int count, char **words) {
    struct utsname here;
    uname(&here);
    printf("%s %d ", here.machine, access(words[count - 1], R_OK));
    unsigned long can = getauxval(AT_HWCAP);
    printf("%d %d\\n", !!(can & HWCAP_CRC32), !!(can & HWCAP_ASIMDHP));
    fflush(stdout);
    if (count == 2) execle(words[0], words[0], "a", "second", "time", NULL, NULL);
    if (count == 3) for (;;) pause();
    return 7;
}
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root file system with one program, which needs no library."""
    if shutil.which(COMPILER) is None:
        pytest.skip(f"{COMPILER} is not installed; apt-get install gcc-aarch64-linux-gnu")
    root = tmp_path_factory.mktemp("root")
    source = root / "program.c"
    source.write_text(PROGRAM)
    subprocess.run([COMPILER, "-static", "-o", root / "program", source], check=True)
    done = run(root, "one", "two", "three")
    if done.returncode == foreign_root.UNABLE:
        pytest.skip(done.stderr.strip())
    return root


def command(root: Path, *words: str, bind: Path | None = None) -> list[str]:
    shared = [] if bind is None else ["--bind", str(bind)]
    start = [sys.executable, foreign_root.__file__, "--root", str(root), *shared]
    return [*start, "--", "/program", *words]


def run(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(root, *words), capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )


def test_a_program_and_what_it_starts_are_emulated_and_its_status_is_handed_on(root: Path) -> None:
    done = run(root, "again")
    assert (done.returncode, done.stderr) == (7, "")
    first, second = done.stdout.splitlines()
    # No such file; a processor with checksums and without half-precision arithmetic.
    assert first == second == "aarch64 -1 1 0"


def test_this_machines_mounts_and_its_table_of_foreign_programs_stay_as_they_are(
    root: Path,
) -> None:
    before = Path("/proc/mounts").read_text(), sorted(TABLE.iterdir())
    run(root)
    assert (Path("/proc/mounts").read_text(), sorted(TABLE.iterdir())) == before


def test_a_folder_of_this_machine_is_seen_under_its_name(root: Path) -> None:
    # Not below /dev, which is seen anyway, and where the files of tests may lie.
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        note = Path(folder) / "note"
        note.touch()
        words = ("a", "b", "c", str(note))
        done = subprocess.run(
            command(root, *words, bind=Path(folder)),
            capture_output=True,
            check=False,
            timeout=PATIENCE_S,
        )
        assert done.stdout == b"aarch64 0 1 0\n"
        assert run(root, *words).stdout == "aarch64 -1 1 0\n", "it is seen only where it is shared"


def test_a_program_that_is_not_there_is_told(root: Path) -> None:
    start = command(root)[:-1]
    done = subprocess.run([*start, "/none"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (127, "/none: No such file or directory\n")


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_the_program_and_all_that_is_around_it(
    root: Path, how: signal.Signals
) -> None:
    with subprocess.Popen(command(root, "for", "ever"), stdout=subprocess.PIPE) as started:
        assert started.stdout is not None
        assert started.stdout.readline().startswith(b"aarch64")
        family = psutil.Process(started.pid).children(recursive=True)
        assert len(family) == 3
        started.send_signal(how)
        code = started.wait(PATIENCE_S)
        assert code == (-signal.SIGKILL if how == signal.SIGKILL else 128 + signal.SIGTERM)
        until(lambda: not any(process.is_running() for process in family), "their end")
