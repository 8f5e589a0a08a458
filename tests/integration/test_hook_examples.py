"""The hooks in `examples/` do what they say; only their paths are replaced."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.install.hooks.files import read_hooks
from agent.install.hooks.names import Answer, answer_of
from agent.install.hooks.process import Ran, run
from tests.simulators.patience import PATIENCE_S
from wire.clock import SystemClock

EXAMPLES = Path(__file__).parents[2] / "examples" / "hooks"
Try = Callable[[], tuple[Answer, Ran]]


def tried(name: str, path: str, directory: Path) -> tuple[Try, Path]:
    """Copy an example that looks at another file; return how to run it, and the file."""
    text, place = (EXAMPLES / name).read_text(), directory / Path(path).name
    assert text.count(f"={path}\n") == 1
    hooks = directory / "hooks.d"
    hooks.mkdir(mode=0o755)
    (hooks / name).write_text(text.replace(f"={path}\n", f"={place}\n"))
    (hooks / name).chmod(0o755)
    assert [hook.name for hook in read_hooks(hooks)] == [name]

    def attempt() -> tuple[Answer, Ran]:
        values = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
        clock = SystemClock()
        done = run(hooks / name, values, timeout_s=PATIENCE_S, clock=clock, check=lambda: None)
        return answer_of(done.status), done

    return attempt, place


def test_every_example_is_executable_and_tried_here() -> None:
    assert sorted(path.name for path in EXAMPLES.iterdir()) == [
        "Preflight_Enter_10_freeze",
        "Switching_Enter_10_recorder",
    ]
    assert all(path.stat().st_mode & 0o111 for path in EXAMPLES.iterdir())


@pytest.mark.skipif(shutil.which("flock") is None, reason="flock is not installed")
def test_the_switch_waits_while_the_recorder_holds_its_lock(tmp_path: Path) -> None:
    attempt, lock = tried("Switching_Enter_10_recorder", "/run/recorder/recording.lock", tmp_path)
    assert attempt()[0] is Answer.GO_ON, "there is no recorder"
    with lock.open("w") as held:
        assert attempt()[0] is Answer.GO_ON, "it records nothing"
        fcntl.flock(held, fcntl.LOCK_EX)
        answer, ran = attempt()
        assert (answer, ran.text) == (Answer.LATER, "exit status 21: a recording is on")
    assert attempt()[0] is Answer.GO_ON, "the lock ended with the recorder"


def test_a_frozen_device_refuses_and_says_why(tmp_path: Path) -> None:
    attempt, file = tried("Preflight_Enter_10_freeze", "/etc/edgefleet/freeze", tmp_path)
    assert attempt()[0] is Answer.GO_ON
    file.write_text("the exhibition is open until Sunday\nask Anna\n")
    answer, ran = attempt()
    assert answer is Answer.NO
    assert ran.text == "exit status 1: the exhibition is open until Sunday"
