"""The unit files are valid, hardened, and start what the distribution installs."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SYSTEMD = Path(__file__).parents[2] / "systemd"
UNITS = sorted(SYSTEMD.glob("*.service"))
MAX_EXPOSURE = 3.0
"""What `systemd-analyze security` calls OK."""

SINCE_254 = ("RestartSteps", "RestartMaxDelaySec")
"""Settings that older versions of systemd ignore, and say so."""

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed"
)


def test_the_units_are_there() -> None:
    assert [unit.stem for unit in UNITS] == ["fleet-agent", "fleet-broker", "fleet-controller"]


def test_the_page_explains_every_file() -> None:
    page = (SYSTEMD.parent / "docs" / "services.md").read_text()
    for file in SYSTEMD.iterdir():
        assert file.name in page, file.name
    assert "docs/services.md" in (SYSTEMD.parent / "README.md").read_text()


def test_the_broker_is_shut_in_as_the_controller_is() -> None:
    # What the broker needs grows with its clients, and a kill would end all their connections. The
    # controller has a process for deltas, which limits itself.
    own = (
        *("#", "Description", "After", "ExecStart", "LimitNOFILE", "MemoryMax"),
        *("OOMPolicy", "RestartPreventExitStatus", "SystemCallFilter=setrlimit"),
    )
    broker, controller = (
        {
            line
            for line in (SYSTEMD / f"fleet-{name}.service").read_text().splitlines()
            if "=" in line and not line.startswith(own)
        }
        for name in ("broker", "controller")
    )
    assert broker == controller


def test_the_memory_of_the_controller_is_bounded() -> None:
    assert "MemoryMax=1G" in (SYSTEMD / "fleet-controller.service").read_text().splitlines()


def test_the_controller_may_restrain_what_makes_deltas_and_outlives_it() -> None:
    lines = (SYSTEMD / "fleet-controller.service").read_text().splitlines()
    assert {"OOMPolicy=continue", "SystemCallFilter=setrlimit prlimit64 setpriority"} <= set(lines)


def test_an_agent_may_listen_for_others_of_its_site() -> None:
    text = (SYSTEMD / "fleet-agent.service").read_text()
    assert not re.search("(?m)^(IPAddressDeny|SocketBindDeny|PrivateNetwork)=", text)
    assert "RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX" in text.splitlines()
    assert "SystemCallFilter=@system-service" in text.splitlines(), "sendfile is one of them"


@needs_systemd
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_unit_is_valid(unit: Path, tmp_path: Path) -> None:
    # The programs are not installed here: any program stands for them, the rest is as shipped.
    text = re.sub(r"(?m)^ExecStart=\S+", f"ExecStart={sys.executable}", unit.read_text())
    copy = tmp_path / unit.name
    copy.write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", str(copy)], capture_output=True, text=True, check=False
    )
    complaints = [
        line
        for line in done.stderr.splitlines()
        if unit.stem in line and not any(f"'{name}'" in line for name in SINCE_254)
    ]
    assert (done.returncode, complaints) == (0, [])


def test_units_are_started_again_for_ever_with_growing_pauses() -> None:
    for unit in UNITS:
        lines = unit.read_text().splitlines()
        assert {
            "StartLimitIntervalSec=0", "Restart=always", "RestartSec=2",
            "RestartSteps=8", "RestartMaxDelaySec=300",
        } <= set(lines)  # fmt: skip
    assert "OOMPolicy=continue" in (SYSTEMD / "fleet-agent.service").read_text().splitlines()


@needs_systemd
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_unit_is_hardened(unit: Path) -> None:
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", str(unit)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    match = re.search(r"Overall exposure level for \S+: ([0-9.]+)", done.stdout)
    assert match is not None, done.stderr
    assert float(match[1]) <= MAX_EXPOSURE


def test_units_start_our_console_scripts() -> None:
    import tomllib

    project = tomllib.loads((SYSTEMD.parent / "pyproject.toml").read_text())["project"]
    started = {
        Path(match[1]).name
        for unit in UNITS
        if (match := re.search(r"(?m)^ExecStart=(\S+)", unit.read_text()))
    }
    assert started == set(project["scripts"])


def test_agent_unit_depends_weakly_on_the_network() -> None:
    text = (SYSTEMD / "fleet-agent.service").read_text()
    assert not re.search(r"(?m)^(Requires|BindsTo|Requisite)=", text)
