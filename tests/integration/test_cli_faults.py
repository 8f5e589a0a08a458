"""What the command line says when something is wrong: one line, a remedy, exit code 2."""

from __future__ import annotations

import http.server
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.simulators.patience import PATIENCE_S, finished, until
from tests.simulators.stack import (
    ROOT,
    Stack,
    environment,
    fleet,
    fleet_here,
    running_stack,
)

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("cli-faults")]


AIM = ("--kind", "adaptive", "--deadline-ms")


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with running_stack() as running:
        yield running


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["device", "show", "nobody"], "no device 'nobody' is enrolled; `fleet device list` shows"),
        (["device", "quarantine", "nobody"], "; `fleet device list` shows the devices that are"),
        (["rollout", "pause", "nothing"], "; `fleet rollout list` shows all rollouts"),
        (["rollout", "create", "no:1", "--offline-limit", "soon"], "--offline-limit: 'soon'"),
        (["device", "show", "../tokens"], "'../tokens' is not an identifier"),
        (["device", "list", "--selector", "site=="], "selector"),
        (["release", "show", "no:1"], "no:1"),
        (["rollout", "show", "nothing"], "nothing"),
        (["rollout", "create", "no:1"], "no:1"),
        (["rollout", "create", "no:1", "--stage", "half"], "--stage: 'half'"),
        (["rollout", "create", "no:1", "--soak", "soon"], "--soak: 'soon' is not a duration"),
        (
            ["rollout", "create", "no:1", "--max-in-flight", "0"],
            "--max-in-flight must be a whole number",
        ),
        (["rollout", "create", "no:1", "--max-in-flight", "x"], "max-in-flight"),
        (["why", "nobody"], "nobody"),
        (["why", "nobody", "--since", "yesterday"], "--since: 'yesterday'"),
        (["token", "create", "--uses", "0"], "uses"),
        (["token", "create", "--expires", "10000w"], "--expires"),
        (["token", "create", "--expires", "12"], "--expires: '12' has no unit; write it as 90s"),
        (["token", "create", "--label", "x"], "'x' is not a label"),
        (["telemetry", "query"], "METRIC"),
        (["telemetry", "query", "x_ms"], "x_ms"),
        (["telemetry", "query", "x_ms", "--step", "1x"], "--step: '1x'"),
        (["telemetry", "query", "x_ms", "--json", "--csv"], "exclude each other"),
        (["release", "publish", "/nowhere"], "/nowhere does not exist; name the output"),
        (["release", "publish", "/etc"], "/etc is not a package: package.dsse.json: no such file"),
        (["policy", "show", "nothing"], "no policy 'nothing'; make one with `fleet policy set`"),
        (["token", "create", "--label", "a=1", "--label", "a=2"], "; give one value for each"),
        (["device", "list", "--selector", "a in (ü)"], "; keys and values are of A-Z a-z 0-9"),
        (["policy", "remove", "nothing"], "there is no policy 'nothing'"),
        (["policy", "show", "Not A Name"], "not a name for a policy"),
        (["policy", "set", "x"], "give --file, --kind or an aim"),
        (["policy", "set", "x", "--file", "/nowhere"], "cannot read /nowhere"),
        (["policy", "set", "x", "--file", "/dev/zero"], "it is not a file"),
        (
            ["policy", "set", "x", "--kind", "clever"],
            "--kind: kind is rules or adaptive, not 'clever'",
        ),
        (["policy", "set", "X", "--kind", "rules"], "not a name for a policy"),
        (["policy", "set", "x", "--kind", "rules", "--priority", "9999"], "priority"),
        (["policy", "set", "x", "--kind", "rules", "--selector", "site=="], "selector"),
        (["policy", "set", "x", "--kind", "rules", "--deadline-ms", "1"], "give --kind adaptive"),
        (
            ["policy", "set", "x", *AIM, "0"],
            "--deadline-ms: objective.deadline_ms is not positive; give",
        ),
        (
            ["policy", "set", "x", *AIM, "5", "--min-retention", "2"],
            "not within 0 to 1; give 0 to 1",
        ),
        (["policy", "set", "x", *AIM, "-1"], "objective.deadline_ms is not positive"),
        (
            ["policy", "set", "x", *AIM, "nan"],
            "--deadline-ms: objective.deadline_ms is not a number",
        ),
        (["policy", "set", "x", *AIM, "soon"], "deadline-ms"),
        (["policy", "set", "x", *AIM, "9", "--battery-until", "6 pm"], "not a time of day"),
        (
            ["policy", "set", "x", *AIM, "9", "--battery-hours", "-1"],
            "--battery-hours: objective.battery_",
        ),
        (
            ["policy", "set", "x", *AIM, "9", "--battery-hours", "4", "--battery-until", "18:00"],
            "contradict each other; give one of them",
        ),
        (["device", "label", "cam-1"], "argument"),
    ],
)
def test_every_fault_is_one_line(stack: Stack, arguments: list[str], text: str) -> None:
    done = stack.fleet(*arguments)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("fleet: ")
    line, *place = done.err.splitlines()
    assert len(place) == (2 if "--selector" in arguments else 0), "a selector and a caret below it"
    assert text in line


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"hot_headrom = 0.9", "did you mean hot_headroom?"),
        (
            b"[policy]\nkind = 'rules'",
            "[policy] is a heading of agent.toml; write its keys without",
        ),
        (b"hot_headroom = nan", "hot_headroom is not a number"),
        (b"hot_headroom = inf", "hot_headroom is not a number"),
        (b"hot_headroom = 0.1", "cool_headroom is above hot_headroom"),
        (b"objective = 3\n", "objective is not a table"),
        (b"low_battery_ratio = 1.5\nok_battery_ratio = 1.5", "low_battery_ratio is not within"),
        (b"low_memory_bytes = -1", "low_memory_bytes is negative"),
        (b"dwell_s = -1", "dwell_s is negative"),
        (b"objective.min_retention = 1.5", "objective.min_retention is not within 0 to 1"),
        (b"objective.deadline_probability = 1.0", "deadline_probability is not within 0.5 to 1"),
        (b"objective.battery_lasts_s = -1", "objective.battery_lasts_s is negative"),
        (b"objective.dead_line = 1", "did you mean objective.deadline_ms?"),
        (b"dwell_s = 2020-01-01", "dwell_s must be a number"),
        (b"objective.battery_until = 18:00", 'write it in quotes: "18:00"'),
        (b"kind = ", "without that heading"),
        (b"\xff", "without that heading"),
    ],
)
def test_a_policy_file_that_is_none(
    stack: Stack, tmp_path: Path, content: bytes, text: str
) -> None:
    file = tmp_path / "policy.toml"
    file.write_bytes(content)
    done = stack.fleet("policy", "set", "x", "--file", str(file), *AIM, "20")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("fleet: ")
    assert done.err.count("\n") == 1
    assert text in done.err
    assert stack.ok("policy", "list", "--json").json == []


def test_an_objective_that_no_policy_would_look_at(stack: Stack, tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    file.write_text("kind = 'rules'\n[objective]\ndeadline_ms = 20\n")
    done = stack.fleet("policy", "set", "x", "--file", str(file))
    assert (done.code, done.out) == (2, "")
    assert done.err == (
        f'fleet: {file}: only the adaptive policy has an objective; write kind = "adaptive"\n'
    )
    assert stack.ok("policy", "list", "--json").json == []


def test_where_the_controller_is_from_the_environment(stack: Stack) -> None:
    assert fleet("device", "list", FLEET_HOME=str(stack.home)).code == 0
    url = f"http://127.0.0.1:{stack.api_port}"
    token = (stack.home / "api.token").read_text().strip()
    assert fleet("device", "list", FLEET_URL=url, FLEET_TOKEN=token).code == 0


def test_wrong_token(stack: Stack, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("not-the-token-of-this-controller")
    done = stack.fleet("device", "list", "--token-file", str(tmp_path / "token"))
    assert done.code == 2
    assert "refused the token; use the token file" in done.err


def test_reader_that_goes_away_is_no_fault(stack: Stack) -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", '"$0" -P -m controller.cli device list --home "$1" | true',
         sys.executable, str(stack.home)],
        env=environment(), cwd=ROOT, capture_output=True, text=True, check=False,
        timeout=PATIENCE_S,
    )  # fmt: skip
    assert done.stderr == ""


def test_broker_port_that_is_taken(stack: Stack) -> None:
    done = fleet("broker", "run", str(stack.home))
    assert done.code == 2
    assert f"cannot listen on 127.0.0.1:{stack.broker_port}" in done.err.splitlines()[-1]


def test_api_port_that_is_taken(stack: Stack) -> None:
    done = fleet("controller", "run", str(stack.home))
    assert done.code == 2
    assert done.err.splitlines()[-1].startswith("fleet: ")


def test_without_a_broker_it_is_said_beside_what_is_shown(stack: Stack) -> None:
    broker = stack.processes.pop(0)
    broker.terminate()
    assert broker.wait(PATIENCE_S) == 0
    until(lambda: not stack.is_healthy(), "the end of the connection")
    for command in (("device", "list"), ("model", "list"), ("rollout", "list")):
        done = stack.ok(*command)
        assert done.err.startswith("warning: devices hear nothing, and what is shown of them may ")
        assert "a connection with the MQTT broker: start it, or correct [broker]" in done.err
        assert done.err.count("\n") == 1
    stack.run("broker", "run")
    until(stack.is_healthy, "the connection")
    assert stack.ok("device", "list").err == ""


def test_last_servers_end_when_told(stack: Stack) -> None:
    assert stack.stop() == [0, 0]
    done = stack.fleet("device", "list")
    assert done.code == 2
    assert f"no controller answers at http://127.0.0.1:{stack.api_port}" in done.err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["device", "list"], "no controller is named"),
        (["device", "list", "--home", "/nowhere"], "fleet init"),
        (["device", "list", "--url", "http://127.0.0.1:1"], "no token"),
        (["bogus"], "no such command 'bogus'"),
        (["device", "list", "--bogus"], "no such option"),
        (["controller", "run", "/nowhere"], "fleet init"),
        (["broker", "run", "/nowhere"], "fleet init"),
        (["init", "/proc/x/y"], "cannot make"),
        (["init", "/"], "already exists"),
        (["init", "/nowhere/at-all", "--api-port", "0"], "port 0"),
    ],
)
def test_faults_without_a_controller(arguments: list[str], text: str) -> None:
    done = fleet_here(*arguments)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("fleet: ")
    assert done.err.count("\n") == 1
    assert text in done.err


class _Stranger(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.send_response(500 if path.endswith("500") else 200)
        self.end_headers()
        self.wfile.write(b"<html>hello</html>")

    def log_message(self, *_arguments: object) -> None:
        """Say nothing."""


def test_another_server(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("t")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Stranger) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        for arguments in (["device", "list"], ["device", "show", "500"]):
            done = fleet_here(*arguments, "--url", url, "--token-file", str(token))
            assert done.code == 2
            assert "check that the address is that of a controller" in done.err
            assert done.err.count("\n") == 1
        server.shutdown()
        finished(thread)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["devise", "list"], "no such command 'devise' (did you mean device?); see `fleet --help`"),
        (["device", "lits"], "no such command 'lits' (did you mean list?); see `fleet device"),
        (["device", "xyzzy"], "no such command 'xyzzy'; see `fleet device --help`"),
        (["why", "cam", "--knd", "x"], "no such option: --knd (did you mean --kind?); see `fleet"),
        (["--hom", "x", "device"], "no such option: --hom (did you mean --home?); see `fleet --h"),
        (["key", "--xyzzy"], "no such option: --xyzzy; see `fleet key --help`"),
    ],
)
def test_what_is_mistyped_is_told_with_what_may_have_been_meant(
    arguments: list[str], said: str
) -> None:
    done = fleet(*arguments)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"fleet: {said}")
    assert done.err.count("\n") == 1


def test_help_is_complete() -> None:
    done = fleet("--help")
    assert done.code == 0
    for command in (
        "init",
        "build",
        "device",
        "release",
        "rollout",
        "telemetry",
        "why",
        "token",
        "policy",
    ):
        assert f"\n  {command} " in done.out
    assert fleet().out == done.out
    assert fleet("rollout").code == 0


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from controller.cli import main; main(['--help']);"
        "heavy = {'http', 'sqlalchemy', 'pydantic', 'numpy', 'onnx', 'rich', 'paho', 'msgspec'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.check_output([sys.executable, "-c", code], text=True, cwd=ROOT)
    assert done.endswith("\n[]\n")
