"""One hook as a real process: what it gets, what is kept of it, and that nothing of it stays."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from agent.errors import StoppedError
from agent.install.hooks.names import LATER_STATUS
from agent.install.hooks.process import KEPT_BYTES, Ran, run
from tests.simulators.patience import PATIENCE_S, finished, until
from wire.clock import SystemClock


def never() -> None:
    """Let it run."""


@pytest.fixture
def script(tmp_path: Path) -> Callable[..., Path]:
    def write(text: str, shebang: str = "#!/bin/sh") -> Path:
        path = tmp_path / "script"
        path.write_text(f"{shebang}\n{text}\n")
        path.chmod(0o700)
        return path

    return write


def ran(path: Path, timeout_s: float = PATIENCE_S, check: Callable[[], None] = never) -> Ran:
    values = {"PATH": os.environ["PATH"], "EDGEFLEET_STATE": "switching"}
    return run(path, values, timeout_s=timeout_s, clock=SystemClock(), check=check)


def ended(*command: str) -> str:
    """Return what a process prints that must end by itself."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("text", "status", "why"),
    [
        ("exit 0", 0, "exit status 0"),
        ("exit 21", 21, "exit status 21"),
        ("exit 255", 255, "exit status 255"),
        ("kill -SEGV $$", 1, "it was ended by SIGSEGV"),
        ("kill -40 $$", 1, "it was ended by signal 40"),
    ],
)
def test_how_it_ended(script: Callable[..., Path], text: str, status: int, why: str) -> None:
    assert ran(script(text)) == Ran(status, why, "")


@pytest.mark.parametrize(
    ("shebang", "why"),
    [
        ("nothing of this is a program", "it cannot be run: exec format error"),
        ("#!/no/such/program", "it cannot be run: no such file or directory"),
    ],
)
def test_what_cannot_be_run_says_no(script: Callable[..., Path], shebang: str, why: str) -> None:
    assert ran(script("", shebang=shebang)) == Ran(1, why, "")


def test_a_file_that_is_being_written_says_later(script: Callable[..., Path]) -> None:
    path = script("exit 0")
    with path.open("a"):
        done = ran(path)
    assert done == Ran(LATER_STATUS, "it cannot be run now: text file busy", "")
    assert ran(path).status == 0


@pytest.mark.parametrize("free", range(6))
def test_without_descriptors_it_says_later_and_leaks_none(free: int) -> None:
    code = f"""
import os, resource
from pathlib import Path
from agent.install.hooks.process import run
from wire.clock import SystemClock
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
held = []
try:
    while True:
        held.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
for _ in range({free}):
    os.close(held.pop())
def begin():
    return run(Path("/bin/true"), {{}}, timeout_s={PATIENCE_S}, clock=SystemClock(), check=int)
done = [begin() for _ in range(20)]
for descriptor in held:
    os.close(descriptor)
print(*{{ran.text for ran in done}}, begin().status)
"""
    told = ended(sys.executable, "-P", "-c", code)
    assert told == (
        "exit status 0 0" if free == 5 else "it cannot be run now: too many open files 0"
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change the user of a process")
def test_what_cannot_be_killed_is_not_waited_for(script: Callable[..., Path]) -> None:
    text = "import os, time\nos.setuid(65_534)\nprint(os.getpid(), flush=True)\ntime.sleep(600)"
    code = f"""
from pathlib import Path
from agent.install.hooks.process import run
from wire.clock import SystemClock
path = Path({str(script(text, f"#!{sys.executable}"))!r})
print(run(path, {{}}, timeout_s=2, clock=SystemClock(), check=int).text)
"""
    without_kill = ("setpriv", "--bounding-set=-kill", "--inh-caps=-kill")
    told = ended(*without_kill, sys.executable, "-P", "-c", code)
    why, _, pid = told.rpartition(": ")
    try:
        assert why.startswith("it does not end and cannot be killed: it may have changed its user")
    finally:
        os.kill(int(pid), signal.SIGKILL)


def test_the_last_line_of_both_streams_is_told_and_obeys_no_terminal(
    script: Callable[..., Path],
) -> None:
    text = "echo first; printf '\\033[2J a recording is on \\n\\n' >&2; exit 21"
    assert ran(script(text)).text == "exit status 21: ?[2J a recording is on"


def test_only_the_end_of_a_long_output_is_kept(script: Callable[..., Path]) -> None:
    text = "import sys\nfor n in range(200_000): print(n)\nsys.exit(3)"
    done = ran(script(text, f"#!{sys.executable}"))
    assert done.status == 3
    assert len(done.output) == KEPT_BYTES
    assert done.text == "exit status 3: 199999"


def test_it_gets_nothing_of_the_agent_but_a_few_variables(
    script: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "of the agent")
    ours, theirs = socket.socketpair()
    os.set_inheritable(theirs.fileno(), True)  # noqa: FBT003 - as the function has it
    text = (
        "import os, sys\n"
        "print(sorted(os.environ), os.getcwd(), sys.stdin.read() == '', len(sys.argv))\n"
        "print(sorted(int(fd) for fd in os.listdir('/proc/self/fd'))[:4])"
    )
    with ours, theirs:
        done = ran(script(text, f"#!{sys.executable} -IS"))
    first, second = done.output.splitlines()
    assert first.replace("'LC_CTYPE', ", "") == "['EDGEFLEET_STATE', 'PATH'] / True 1"
    assert second == "[0, 1, 2, 3]", "and 3 is the directory that it lists"


def test_at_the_limit_the_whole_group_is_killed(
    script: Callable[..., Path], tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    text = f"trap '' TERM\nsleep 1000 &\necho $! $$ > {pids}\necho it hangs\nwait"
    done = ran(script(text), timeout_s=1.0)
    assert (done.status, done.text) == (1, "it did not end within 1 s: it hangs")
    until(lambda: not any(psutil.pid_exists(int(pid)) for pid in pids.read_text().split()))


def test_what_it_leaves_behind_ends_with_it_and_holds_up_nothing(
    script: Callable[..., Path], tmp_path: Path
) -> None:
    pid = tmp_path / "pid"
    done = ran(script(f"sleep 1000 & echo $! > {pid}; echo done"))
    assert done == Ran(0, "exit status 0", "done\n")
    until(lambda: not psutil.pid_exists(int(pid.read_text())))


def test_one_that_closes_its_streams_is_waited_for(script: Callable[..., Path]) -> None:
    text = "import os, time\nos.close(1); os.close(2)\ntime.sleep(0.3)\nos._exit(21)"
    done = ran(script(text, f"#!{sys.executable}"))
    assert done.status == 21


def test_a_stop_of_the_agent_ends_it(script: Callable[..., Path], tmp_path: Path) -> None:
    pid, stopping = tmp_path / "pid", threading.Event()
    ends: list[str] = []

    def check() -> None:
        if stopping.is_set():
            raise StoppedError("the agent is being stopped")

    def body() -> None:
        with pytest.raises(StoppedError):
            ran(path, check=check)
        ends.append("stopped")

    path = script(f"trap '' TERM; echo $$ > {pid}.new; mv {pid}.new {pid}; sleep 1000")
    thread = threading.Thread(target=body)
    thread.start()
    until(pid.exists)
    stopping.set()
    finished(thread)
    assert ends == ["stopped"]
    assert not psutil.pid_exists(int(pid.read_text()))


def test_signals_that_the_agent_ignores_do_reach_it(script: Callable[..., Path]) -> None:
    before = signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    try:
        done = ran(script("kill -PIPE $$"))
    finally:
        signal.signal(signal.SIGPIPE, before)
    assert done.why == "it was ended by SIGPIPE"
