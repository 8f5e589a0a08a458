"""Several models from the command line: which there are, who runs them, and taking one away."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.simulators.packages import package, variant
from tests.simulators.patience import until
from tests.simulators.stack import Puppet, Stack, running_stack
from wire.desired import NAMED_MODELS
from wire.trust.envelope import SigningKey

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("cli-models")]


@pytest.fixture(scope="module")
def site() -> Iterator[tuple[Stack, Puppet]]:
    """A fleet with two models, on a device that has both and one whose agent has one model."""
    with running_stack() as running:
        key = SigningKey(running.release_key.read_bytes())
        for name in ("digits", "faces"):
            content = f"model {name}".encode()
            signed = package("1", [(variant("best"), content)], name=name, key=key)
            signed.write_to(running.home.parent / name)
            running.ok("release", "publish", str(running.home.parent / name))
        token = running.ok("token", "create", "--uses", "2").out.strip()
        puppets = [
            Puppet(running, "cam-both", token, "succeeded", desired_form=NAMED_MODELS),
            Puppet(running, "cam-one", token, "succeeded"),
        ]
        for release, rest in (("digits:1", []), ("faces:1", ["--exclude-unfit"])):
            done = running.fleet("rollout", "create", release, "--watch", *rest)
            assert done.code == 0, done.out + done.err
        puppets[0].send_telemetry(release="digits:1")
        yield running, puppets[0]
        for puppet in puppets:
            puppet.transport.close()


@pytest.fixture
def stack(site: tuple[Stack, Puppet]) -> Stack:
    """The controller, and how it is asked."""
    return site[0]


@pytest.fixture
def both(site: tuple[Stack, Puppet]) -> Puppet:
    """The device that has both models."""
    return site[1]


def shown_models(stack: Stack, device: str) -> dict[str, dict[str, str]]:
    """Return the table of the models of a device, by the name of the model."""
    lines = stack.ok("device", "show", device).out.partition("MODEL")[2].splitlines()
    heading = f"MODEL{lines[0]}"
    columns = [(match.group(), match.start()) for match in re.finditer(r"\S+( \S+)*", heading)]
    ends = [start for _, start in columns[1:]] + [None]
    rows = [
        {name: line[start:end].strip() for (name, start), end in zip(columns, ends, strict=True)}
        for line in lines[1:]
        if line.strip()
    ]
    return {row["MODEL"]: row for row in rows}


def test_a_device_is_shown_with_its_models(stack: Stack) -> None:
    shown = stack.ok("device", "show", "cam-both").out
    assert "MODEL" in shown
    assert "digits:1" in shown
    assert "faces:1" in shown
    assert "desired release" not in shown, "that is said of each model"
    assert "desired release" in stack.ok("device", "show", "cam-one").out
    lines = [line.split() for line in stack.ok("device", "list").out.splitlines()[1:]]
    assert [(line[0], line[4]) for line in lines] == [
        ("cam-both", "digits:1"),
        ("cam-both", "faces:1"),
        ("cam-one", "digits:1"),
    ]
    found = stack.ok("device", "show", "cam-one", "--json").json
    assert (found["release"], found["variant"]) == ("digits:1", "best"), "as it always was"
    assert [model["name"] for model in found["models"]] == ["digits"]


def test_models_are_listed_with_how_many_run_them(stack: Stack) -> None:
    lines = [line.split() for line in stack.ok("model", "list").out.splitlines()[1:]]
    assert lines == [
        ["digits", "digits:1", "published", "2", "2", "0"],
        ["faces", "faces:1", "published", "1", "1", "0"],
    ]
    rollouts = stack.ok("rollout", "list", "--json").json
    assert {rollout["model"] for rollout in rollouts} == {"digits", "faces"}


def test_a_typo_says_what_there_is(stack: Stack) -> None:
    wrong = stack.fleet("rollout", "create", "digts:1")
    assert wrong.code == 2
    assert wrong.err.strip() == (
        "fleet: no release 'digts:1' has been published; did you mean digits:1? there are the "
        "releases digits:1 and faces:1"
    )
    wrong = stack.fleet("policy", "set", "fast", "--model", "face", "--deadline-ms", "9")
    assert wrong.code == 2
    assert "there is no model 'face'; did you mean faces?" in wrong.err
    wrong = stack.fleet("model", "remove", "fases")
    assert wrong.code == 2
    assert "did you mean faces?" in wrong.err


def test_a_policy_is_for_one_model(stack: Stack) -> None:
    said = stack.ok("policy", "set", "fast", "--model", "faces", "--deadline-ms", "9").out
    assert said.startswith("policy fast: adaptive for model faces on ")
    row = stack.ok("policy", "list").out.splitlines()[1].split()
    assert (row[0], row[2]) == ("fast", "faces")
    assert "faces" in stack.ok("policy", "show", "fast").out
    until(lambda: shown_models(stack, "cam-both")["faces"]["ACCEPTED"] == "yes", "its acceptance")
    models = shown_models(stack, "cam-both")
    assert [(m["POLICY"], m["ACCEPTED"], m["DRIFTED"]) for m in models.values()] == [
        ("default", "yes", "no"),
        ("fast", "yes", "no"),
    ]


def test_a_model_that_a_client_unloaded_is_shown_so(stack: Stack, both: Puppet) -> None:
    both.unloaded = {"faces"}
    both.come_back()
    until(
        lambda: shown_models(stack, "cam-both")["faces"]["VARIANT"] == "none: unloaded or parked",
        "the news",
    )
    shown = stack.ok("device", "show", "cam-both")
    assert "`fleet why cam-both --model faces --since 1d` says which" in shown.err
    assert shown_models(stack, "cam-both")["digits"]["VARIANT"] == "best"
    listed = [line for line in stack.ok("device", "list").out.splitlines() if "faces:1" in line]
    assert len(listed) == 1
    assert "none: unloaded or parked" in listed[0]
    rows = {
        line.split()[1]: line.split()[-1] for line in stack.ok("model", "list").out.splitlines()
    }
    assert (rows["digits:1"], rows["faces:1"]) == ("0", "1")
    found = stack.ok("device", "show", "cam-both", "--json").json["models"]
    assert [model["unloaded"] for model in found] == [False, True]

    both.unloaded = set()
    both.come_back()
    until(
        lambda: shown_models(stack, "cam-both")["faces"]["VARIANT"] == "best",
        "that it serves again",
    )


def test_what_was_decided_is_asked_by_model(stack: Stack) -> None:
    until(lambda: "switch" in stack.ok("why", "cam-both").out, "the events")
    assert "switch" in stack.ok("why", "cam-both", "--model", "faces").out, "it is of the device"
    wrong = stack.fleet("why", "cam-both", "--model", "fases")
    assert wrong.code == 2
    assert "there is no model 'fases'; did you mean faces?" in wrong.err


def test_telemetry_is_asked_by_model(stack: Stack) -> None:
    query = ("telemetry", "query", "inference_latency_ms", "--stat", "count", "--json")
    until(lambda: stack.fleet(*query).code == 0, "telemetry")
    assert stack.ok(*query, "--model", "digits").json["rows"] == [[100]]
    assert stack.ok(*query, "--model", "faces").json["rows"] == []
    for typo in (("--model", "digts"), ("--where", "model=digts")):
        wrong = stack.fleet(*query, *typo)
        assert wrong.code == 2
        assert "there is no model 'digts'; did you mean digits?" in wrong.err


def test_a_model_is_taken_away_from_no_device_for_the_true_reason(stack: Stack) -> None:
    wrong = stack.fleet("model", "remove", "faces", "--selector", "site=nowhere")
    assert wrong.code == 2
    assert "no device matches the selector 'site=nowhere'; `fleet device list`" in wrong.err
    wrong = stack.fleet("model", "remove", "faces", "--selector", "id=cam-one")
    assert wrong.code == 2
    assert "no device that matches the selector 'id=cam-one' has model faces" in wrong.err


def test_a_model_is_taken_away(stack: Stack) -> None:
    said = stack.ok("model", "remove", "faces", "--selector", "id=cam-both").out
    assert said.startswith("model faces is taken away from 1 device")
    until(
        lambda: len(stack.ok("device", "show", "cam-both", "--json").json["models"]) == 1,
        "the device to say that it is gone",
    )
    old = stack.ok("model", "remove", "digits", "--selector", "id=cam-one")
    assert "cam-one cannot remove it: the agent has one model" in old.err
