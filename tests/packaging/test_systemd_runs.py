"""systemd really starts the units, as they are shipped, and keeps them up.

Not tested: that systemd leaves the unit up when the kernel kills a worker for memory. systemd sees
such a kill only where the memory controller belongs to cgroup v2.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx
import pytest

from agent.install.slots import ONE_SLOT
from agent.install.states import State
from agent.install.store import FileStateStore
from examples.digits.box import free_port
from tests.field.clients import answers
from tests.simulators.agent_process import null_package
from tests.simulators.device_environment import device_environment
from tests.simulators.packages import TRUST, desired
from tests.simulators.patience import until
from tests.simulators.systemd_machine import NoSystemdError, SystemdMachine

UNITS = Path(__file__).parents[2] / "systemd"
AGENT = "fleet-agent"
PROFILE = """\
name = "bench"
architecture = "{architecture}"
memory_bytes = 1073741824
storage_bytes = 1073741824
runtimes = ["null"]
"""
CONFIG = """\
device = "dev-1"
state_dir = "/var/lib/edgefleet"
profile = "/etc/edgefleet/bench.toml"
trust = "/etc/edgefleet/trust.json"
token_file = "/etc/edgefleet/token"
[broker]
port = 1
[endpoint]
port = {port}
"""
NAME = f"python{sys.version_info.major}.{sys.version_info.minor}"
BROKER = "fleet-broker"
CONTROLLER = "fleet-controller"
CONTROLLER_HOME = "/var/lib/edgefleet-controller"
PREPARE_CONTROLLER = """\
systemd-sysusers --root="$ROOT" "{units}/edgefleet.sysusers.conf"
"{python}" -m venv --without-pip "$ROOT/opt/edgefleet"
printf '%s\\n' {paths} > "$ROOT/opt/edgefleet/lib/{name}/site-packages/here.pth"
printf '%s\\n' '#!/opt/edgefleet/bin/python' 'import sys' \\
  'from controller.__main__ import main' 'sys.exit(main())' \\
  > "$ROOT/opt/edgefleet/bin/fleet"
chmod 755 "$ROOT/opt/edgefleet/bin/fleet"
cp "{units}/fleet-controller.service" "{units}/fleet-broker.service" "$ROOT/run/systemd/system/"
"""
MAKE_A_DELTA = """\
import os, threading
from pathlib import Path
from controller.delivery.encoding import Encoding
from controller.domain.deltas import Package, Way
from controller.services.blobs import BlobStore
from wire.package.index import FileEntry, PackageIndex
from wire.package.manifest import Manifest

home = Path(os.environ["STATE_DIRECTORY"])
blobs = BlobStore(home / "blobs")
content = os.urandom(4 * 2**20)
stored = [blobs.put(content), blobs.put(content + os.urandom(2**20))]
old, new = (FileEntry(path="w", size_bytes=2**22, sha256=d, chunks=()) for d in stored)
package = Package(
    index=PackageIndex(name="m", version="1", files=(new,)),
    manifest=Manifest(name="m", version="1", variants=()),
)
seen = set()

def look():
    while True:
        for child in Path(f"/proc/{os.getpid()}/task").glob("*/children"):
            for pid in child.read_text().split():
                try:
                    seen.add(("nice", os.getpriority(os.PRIO_PROCESS, int(pid))))
                    seen.add(("oom", Path(f"/proc/{pid}/oom_score_adj").read_text().strip()))
                    limits = Path(f"/proc/{pid}/limits").read_text().splitlines()
                    found = next(x.split()[3] for x in limits if x.startswith("Max data size"))
                    seen.add(("data", found != "unlimited"))
                except OSError:
                    pass

threading.Thread(target=look, daemon=True).start()
way = Way(target=new, package=package, base=old, base_package=package)
made = Encoding(home / "blobs" / "making", blobs).make(way)
assert made is not None, "it does not pay"
missing = {("nice", 19), ("oom", "1000"), ("data", True)} - seen
assert not missing, missing
print("made", made.stat().st_size)
"""
"""Makes a delta as the controller does, and looks at what the process was allowed to do."""

HIDDEN = tuple(map(Path, ("/home", "/root", "/run", "/tmp", "/var/tmp")))  # noqa: S108 - not used
"""What the units hide from their programs."""

PREPARE = """\
echo 'edgefleet:x:990:990::/nonexistent:/usr/sbin/nologin' >> "$ROOT/etc/passwd"
echo 'edgefleet:x:990:' >> "$ROOT/etc/group"
cp -rL "{files}/environment" "$ROOT/opt/edgefleet"
ln -sf "{python}" "$ROOT/opt/edgefleet/bin/python"
sed -i '1s|.*|#!/opt/edgefleet/bin/python|' "$ROOT/opt/edgefleet/bin/fleet-agent"
cp -r "{files}/etc" "$ROOT/etc/edgefleet"
cp -r "{files}/state" "$ROOT/var/lib/edgefleet"
cp "{units}/fleet-agent.service" "$ROOT/run/systemd/system/"
"""


@dataclass
class Installed:
    """A machine with the agent's unit."""

    machine: SystemdMachine
    port: int
    """Of the endpoint."""

    def systemctl(self, *words: str) -> str:
        done = self.machine.run("systemctl", *words)
        assert done.returncode == 0, done.stderr + self.journal()
        return done.stdout.strip()

    def shows(self, name: str) -> str:
        return self.systemctl("show", AGENT, "--value", "-p", name)

    def journal(self) -> str:
        return self.machine.run("journalctl", "-u", AGENT, "--no-pager", "-o", "cat").stdout[-3000:]

    def override(self, settings: str) -> None:
        """Change settings of the unit, as `systemctl edit` does."""
        place = f"/run/systemd/system/{AGENT}.service.d"
        script = f'mkdir -p "{place}" && printf %s "$0" > "{place}/test.conf"'
        done = self.machine.run("sh", "-c", script, settings)
        assert done.returncode == 0, done.stderr
        self.systemctl("daemon-reload")

    def until_it_serves(self) -> None:
        until(lambda: answers(self.port), lambda: f"an answer: {self.journal()}", step_s=0.1)

    def workers(self) -> list[int]:
        """Return the processes of the unit but for its first, by their numbers in the machine."""
        group = self.shows("ControlGroup")
        listed = self.machine.run("cat", f"/sys/fs/cgroup{group}/cgroup.procs").stdout.split()
        return [int(pid) for pid in listed if pid != self.shows("MainPID")]


def is_hidden(place: Path) -> bool:
    return any(place.is_relative_to(hidden) for hidden in HIDDEN)


def interpreter() -> Path:
    """Return an interpreter of our version that the units do not hide."""
    own = Path(sys.base_prefix) / "bin" / "python3"
    for python in (own, Path("/usr/local/bin") / NAME, Path("/usr/bin") / NAME):
        if python.exists() and not is_hidden(python.resolve()):
            return python
    pytest.skip(f"the units hide {sys.base_prefix}, and /usr/bin has no {NAME}")


@pytest.fixture
def installed() -> Iterator[Installed]:
    """Install the agent and a package on a machine, and start nothing."""
    with tempfile.TemporaryDirectory(prefix="ef-", ignore_cleanup_errors=True) as directory:
        files, port = Path(directory), free_port()
        install(files, port)
        machine = SystemdMachine(files / "machine")
        try:
            machine.start(PREPARE.format(files=files, units=UNITS, python=interpreter()))
            yield Installed(machine, port)
        except NoSystemdError as exc:
            pytest.skip(str(exc))
        finally:
            machine.stop()


def install(files: Path, port: int) -> None:
    device_environment(files / "environment", "numpy")
    etc = files / "etc"
    etc.mkdir()
    etc.chmod(0o755)
    (etc / "agent.toml").write_text(CONFIG.format(port=port))
    (etc / "bench.toml").write_text(PROFILE.format(architecture=os.uname().machine))
    (etc / "trust.json").write_bytes(TRUST.to_bytes())
    (etc / "token").write_text("none\n")
    package = null_package("1.0.0")
    package.write_to(files / "state" / "packages" / package.digest)
    (files / "state" / ONE_SLOT).symlink_to(f"packages/{package.digest}")


def test_the_agent_serves_and_is_started_again_when_it_dies(installed: Installed) -> None:
    installed.systemctl("start", AGENT)
    installed.until_it_serves()
    assert installed.shows("User") == "edgefleet"
    first = installed.shows("MainPID")
    installed.systemctl("kill", "--kill-whom=main", "--signal=KILL", AGENT)
    until(lambda: installed.shows("NRestarts") == "1", installed.journal, step_s=0.1)
    installed.until_it_serves()
    assert installed.shows("MainPID") != first
    installed.systemctl("stop", AGENT)
    assert installed.shows("Result") == "success"


def test_a_worker_that_dies_does_not_end_the_unit(installed: Installed) -> None:
    installed.systemctl("start", AGENT)
    installed.until_it_serves()
    first, workers = installed.shows("MainPID"), installed.workers()
    assert workers
    for worker in workers:
        installed.machine.run("kill", "-KILL", str(worker))
    until(
        lambda: (found := installed.workers()) and not set(found) & set(workers),
        installed.journal,
        step_s=0.1,
    )
    installed.until_it_serves()
    assert (installed.shows("MainPID"), installed.shows("NRestarts")) == (first, "0")


def test_an_agent_that_hangs_is_started_again_by_the_watchdog(installed: Installed) -> None:
    installed.systemctl("start", AGENT)
    installed.until_it_serves()
    assert installed.shows("WatchdogUSec") == "30s"
    installed.systemctl("stop", AGENT)
    installed.override("[Service]\nWatchdogSec=10\n")
    installed.systemctl("start", AGENT)
    installed.until_it_serves()
    assert installed.shows("WatchdogUSec") == "10s"
    installed.systemctl("kill", "--kill-whom=main", "--signal=STOP", AGENT)
    until(lambda: int(installed.shows("NRestarts")) == 1, installed.journal, step_s=0.5)
    installed.until_it_serves()
    assert "watchdog" in installed.machine.run("journalctl", "--no-pager").stdout.lower()


INTERRUPT = """\
mkdir -m 755 /etc/edgefleet/hooks.d
printf '%s' "$1" > /etc/edgefleet/hooks.d/Switching_Enter_00
printf '%s' "$2" > /etc/edgefleet/hooks.d/Confirming_Enter_00
chmod 755 /etc/edgefleet/hooks.d/*
printf '[hooks]\\ndirectory = "/etc/edgefleet/hooks.d"\\n' >> /etc/edgefleet/agent.toml
shift 2
while [ "$#" -gt 0 ]; do printf '%s' "$2" > "/var/lib/edgefleet/$1"; shift 2; done
"""
TELLS = """\
#!/bin/sh
id -un > "$EDGEFLEET_PACKAGE/../../told"
echo no > /etc/edgefleet/told || echo "shut in" >> "$EDGEFLEET_PACKAGE/../../told"
"""
HANGS = """\
#!/bin/sh
echo $$ >> /var/lib/edgefleet/hangs
exec sleep 1000
"""


def test_hooks_run_shut_in_and_end_with_the_agent(installed: Installed, tmp_path: Path) -> None:
    wanted, envelope = desired(1, null_package("1.0.0"))
    files = FileStateStore(tmp_path)
    files.accept(1, envelope)
    files.update_model("digits", revision=1, target=wanted.release, state=State.SWITCHING)
    record = [word for p in tmp_path.iterdir() for word in (p.name, p.read_text())]
    made = installed.machine.run("sh", "-ec", INTERRUPT, "sh", TELLS, HANGS, *record)
    assert made.returncode == 0, made.stderr

    def read(name: str) -> list[str]:
        return installed.machine.run("cat", f"/var/lib/edgefleet/{name}").stdout.split("\n")[:-1]

    installed.systemctl("start", AGENT)
    installed.until_it_serves()
    until(lambda: len(read("hangs")) == 1, installed.journal, step_s=0.1)
    assert read("told") == ["edgefleet", "shut in"]
    installed.systemctl("kill", "--kill-whom=main", "--signal=KILL", AGENT)
    until(lambda: len(read("hangs")) == 2, installed.journal, step_s=0.1)
    first, second = read("hangs")
    assert installed.machine.run("test", "-e", f"/proc/{first}").returncode != 0
    installed.systemctl("stop", AGENT)
    assert installed.shows("Result") == "success"
    assert installed.machine.run("test", "-e", f"/proc/{second}").returncode != 0


def test_controller_and_broker_work_together_and_are_started_again(tmp_path: Path) -> None:
    paths = [path for path in sys.path if Path(path).is_dir()]
    for path in paths:
        if is_hidden(Path(path)) and not path.startswith(sys.base_prefix):
            pytest.skip(f"the unit hides {path}")
    port = free_port()
    machine = SystemdMachine(tmp_path / "machine")

    def show(unit: str, name: str) -> str:
        return machine.run("systemctl", "show", unit, "--value", "-p", name).stdout.strip()

    def was_started_again(unit: str) -> bool:
        return show(unit, "NRestarts") == "1"

    def journal() -> str:
        units = (word for unit in (BROKER, CONTROLLER) for word in ("-u", unit))
        return machine.run("journalctl", *units, "--no-pager").stdout[-3000:]

    def is_connected() -> bool:
        try:
            url = f"http://127.0.0.1:{port}/v1/health"
            answer = httpx.get(url, trust_env=False, timeout=5.0)
        except httpx.TransportError:
            return False
        return answer.status_code == 200 and answer.json()["broker_connected"]

    try:
        machine.start(
            PREPARE_CONTROLLER.format(
                python=interpreter(),
                name=NAME,
                units=UNITS,
                paths=shlex.join(p for p in paths if not p.startswith(sys.base_prefix)),
            )
        )
        ports = ("--api-port", str(port), "--broker-port", str(free_port()))
        made = machine.run("/opt/edgefleet/bin/fleet", "init", CONTROLLER_HOME, *ports)
        assert made.returncode == 0, made.stderr
        machine.run("chown", "-R", "edgefleet-controller:", CONTROLLER_HOME)
        machine.run("systemctl", "start", BROKER, CONTROLLER)
        until(is_connected, journal, step_s=0.2)
        for unit in (BROKER, CONTROLLER):
            assert show(unit, "User") == "edgefleet-controller"
            first = show(unit, "MainPID")
            machine.run("systemctl", "kill", "--kill-whom=main", "--signal=KILL", unit)
            until(partial(was_started_again, unit), journal, step_s=0.2)
            until(is_connected, journal, step_s=0.2)
            assert show(unit, "MainPID") != first
        assert "made" in _delta_made_in_the_unit(machine)
    except NoSystemdError as exc:
        pytest.skip(str(exc))
    finally:
        machine.stop()


def _delta_made_in_the_unit(machine: SystemdMachine) -> str:
    """Make a delta with all that the controller's unit forbids, and return what came of it."""
    script = f"{CONTROLLER_HOME}/delta.py"
    unit = "/run/systemd/system/delta.service"
    text = re.sub(
        r"(?m)^(ExecStart|Type|Restart)=.*",
        lambda found: {
            "ExecStart": f"ExecStart=/opt/edgefleet/bin/python -P {script}",
            "Type": "Type=oneshot",
            "Restart": "Restart=no",
        }[found[1]],
        (UNITS / f"{CONTROLLER}.service").read_text(),
    )
    for place, content in ((script, MAKE_A_DELTA), (unit, text)):
        done = machine.run("sh", "-c", f'printf %s "$0" > "{place}"', content)
        assert done.returncode == 0, done.stderr
    machine.run("chown", "edgefleet-controller:", script)
    machine.run("systemctl", "daemon-reload")
    started = machine.run("systemctl", "start", "delta")
    said = machine.run("journalctl", "-u", "delta", "--no-pager", "-o", "cat").stdout
    assert started.returncode == 0, said
    return said
