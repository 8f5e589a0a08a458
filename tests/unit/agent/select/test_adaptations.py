"""All models of a device decide by the same readings, and ask applications for the strictest."""

from __future__ import annotations

import threading
from pathlib import Path

import msgspec
import pytest

from agent.packages import open_package
from agent.select.adaptation import Adaptation
from agent.select.adaptations import NOTHING_YET, Adaptations
from agent.select.learnt import Learnt
from agent.select.levers import Levers
from agent.select.meter import Meter
from agent.serve.advice import Advice
from tests.simulators.clock import FakeClock
from tests.simulators.device import Heard
from tests.simulators.packages import PROFILE, TRUST, package, variant
from tests.simulators.patience import PATIENCE_S
from tests.simulators.serving import FakeModelServer
from wire.health import HealthSnapshot
from wire.policy import PolicySpec, Sharing

MIB = 2**20
RULES = PolicySpec(kind="rules", dwell_s=0.0)
COOL = HealthSnapshot(at_s=0.0, memory_available_bytes=2000 * MIB, headroom=0.2)
WARM = msgspec.structs.replace(COOL, headroom=0.8)
HOT = msgspec.structs.replace(COOL, headroom=0.95)
LEARNT = Learnt(capacity_j=1000.0)


class Rig:
    """The models of a device, over workers that are no processes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clock, self.heard = FakeClock(), Heard([], [])
        self.all = Adaptations(self.clock)
        self.servers: dict[str, FakeModelServer] = {}
        self.models: dict[str, Adaptation] = {}
        self.meters: dict[str, Meter] = {}

    def add(self, name: str, policy: PolicySpec = RULES) -> Adaptation:
        self.servers[name], self.meters[name] = FakeModelServer(), Meter(self.clock)
        adaptation = Adaptation(
            self.servers[name], PROFILE, self.meters[name], self.heard, self.clock
        )
        adaptation.policy = policy
        self.models[name] = adaptation
        self.all.add(name, adaptation)
        return adaptation

    def serve(self, name: str) -> None:
        variants = [
            (variant("best", accuracy=0.99, latency_ms=40.0, memory_bytes=300 * MIB), b"{}"),
            (variant("small", accuracy=0.90, latency_ms=5.0, memory_bytes=50 * MIB), b"{}"),
        ]
        made = package("1.0.0", variants, name=name)
        made.write_to(self.root / name)
        opened = open_package(self.root / name, made.digest, TRUST)
        self.models[name].serve(opened, {}, {}, why="test")

    def tick(self, health: HealthSnapshot) -> dict[str, str | None]:
        self.clock.advance(1.0)
        self.all.tick(health)
        return {name: adaptation.active()[1] for name, adaptation in self.models.items()}


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def test_every_model_decides_by_the_same_readings(rig: Rig) -> None:
    rig.all.note(COOL)
    for name in ("digits", "speech"):
        rig.add(name)
        rig.serve(name)
    assert rig.tick(COOL) == {"digits": "best", "speech": "best"}
    assert rig.tick(HOT) == {"digits": "small", "speech": "small"}
    assert rig.all.health == HOT
    assert {model.health for model in rig.models.values()} == {HOT}


def test_a_model_that_comes_later_knows_what_is_known(rig: Rig) -> None:
    rig.all.recall(LEARNT)
    rig.all.note(HOT)
    adaptation = rig.add("digits")
    assert adaptation.health == HOT
    assert adaptation.learnt == LEARNT
    rig.serve("digits")
    assert adaptation.active()[1] == "small"


def test_what_was_learnt_before_a_restart_reaches_the_models_that_are_there(rig: Rig) -> None:
    rig.add("digits")
    rig.add("speech")
    assert rig.all.learnt == Learnt()
    rig.all.recall(LEARNT)
    assert [model.learnt for model in rig.models.values()] == [LEARNT, LEARNT]
    assert rig.all.learnt == LEARNT
    rig.all.remove("digits")
    rig.all.remove("speech")
    assert rig.all.learnt == LEARNT, "it is of the device"


def test_readings_that_cannot_be_are_taken_for_unknown(rig: Rig) -> None:
    rig.all.note(msgspec.structs.replace(COOL, headroom=float("nan")))
    assert rig.all.health.headroom is None
    rig.tick(msgspec.structs.replace(COOL, memory_available_bytes=-1))
    assert rig.all.health.memory_available_bytes is None


def test_a_model_that_was_removed_is_left_alone(rig: Rig) -> None:
    rig.all.note(COOL)
    for name in ("digits", "speech"):
        rig.add(name)
        rig.serve(name)
    rig.all.remove("digits")
    rig.all.remove("digits")
    calls = list(rig.servers["digits"].calls)
    assert rig.tick(HOT) == {"digits": "best", "speech": "small"}
    assert rig.servers["digits"].calls == calls


def test_the_memory_of_the_neighbours_is_that_of_all_other_models(rig: Rig) -> None:
    rig.all.note(COOL)
    for number, name in enumerate(("digits", "faces", "speech"), start=1):
        rig.add(name)
        rig.serve(name)
        active = rig.servers[name].active
        assert active is not None
        active.memory_bytes = number * MIB
    rig.models["faces"].withdraw()
    assert rig.all.held_bytes(but="digits") == {"speech": 3 * MIB}
    assert rig.all.held_bytes(but="speech") == {"digits": MIB}
    assert rig.all.held_bytes(but="new") == {"digits": MIB, "speech": 3 * MIB}


def test_the_policy_of_the_device_is_the_one_that_keeps_most_memory_free(rig: Rig) -> None:
    assert rig.all.policy == PolicySpec()
    careful = msgspec.structs.replace(RULES, low_memory_bytes=500 * MIB)
    rig.add("digits", careful)
    rig.add("speech")
    assert rig.all.policy == careful
    rig.all.remove("digits")
    assert rig.all.policy == RULES


def test_before_anything_serves_everything_that_may_wait_waits(rig: Rig) -> None:
    nothing_yet = Advice(defer=True, reasons=(NOTHING_YET,))
    assert rig.all.advice() == nothing_yet
    rig.add("digits")
    assert rig.all.advice() == nothing_yet
    assert rig.all.levers == Levers()
    rig.all.note(HOT)
    assert list(rig.all.levers.causes) == ["heat"], "the readings tell"


def test_the_advice_of_the_only_model_in_service_is_that_of_the_device(rig: Rig) -> None:
    rig.all.note(COOL)
    digits = rig.add("digits")
    rig.add("speech")
    rig.serve("digits")
    assert rig.all.advice() == Advice(), "nothing of speech has come yet"
    rig.tick(HOT)
    assert rig.all.advice() == digits.advice()
    assert rig.all.advice().reasons == ("heat: headroom 0.95",)


def test_of_several_models_the_strictest_counts_and_the_reasons_have_their_names(
    rig: Rig,
) -> None:
    rig.all.note(COOL)
    rig.add("digits")
    rig.add("speech", msgspec.structs.replace(RULES, hot_headroom=0.75, cool_headroom=0.6))
    rig.serve("digits")
    rig.serve("speech")
    assert rig.all.advice() == Advice()
    rig.tick(WARM)
    strict, lax = rig.models["speech"].advice(), rig.models["digits"].advice()
    assert lax == Advice()
    assert strict.defer
    told = rig.all.advice()
    assert (told.sampling_ratio, told.defer) == (strict.sampling_ratio, True)
    assert told.reasons == tuple(f"speech: {why}" for why in strict.reasons)
    decision = rig.models["speech"].decision
    assert decision is not None
    assert rig.all.levers == decision.levers
    rig.models["speech"].withdraw()
    assert rig.all.advice() == Advice(), "what is out of service asks for nothing"


def adaptive(weight: float, *, may_park: bool = False) -> PolicySpec:
    return PolicySpec(dwell_s=0.0, sharing=Sharing(weight=weight, may_park=may_park))


def free(rig: Rig, total_mib: int) -> HealthSnapshot:
    """Return readings of a device whose workers hold what their variants declare."""
    for server in rig.servers.values():
        if server.active is not None:
            server.active.memory_bytes = server.active.variant.info.requirements.memory_bytes
    held = sum(s.active.memory_bytes for s in rig.servers.values() if s.active is not None)
    return msgspec.structs.replace(COOL, memory_available_bytes=max(total_mib * MIB - held, 0))


def test_when_memory_gets_short_the_model_of_less_weight_makes_room(rig: Rig) -> None:
    for name, weight in (("digits", 1.0), ("speech", 5.0)):
        rig.add(name, adaptive(weight))
        rig.all.note(free(rig, 2000))
        rig.serve(name)
    assert rig.tick(free(rig, 2000)) == {"digits": "best", "speech": "best"}
    serving: dict[str, str | None] = {}
    for _ in range(400):  # what is short, but not all used, has to pay for a switch first
        serving = rig.tick(free(rig, 610))
    assert serving == {"digits": "small", "speech": "best"}
    told = [reason for kind, reason, _ in rig.heard.events if kind == "switch"]
    assert any("speech" in reason for reason in told), "the reason names the other model"


def test_a_model_that_may_be_parked_ends_its_worker_and_comes_back(rig: Rig) -> None:
    for name, spec in (("digits", adaptive(1.0, may_park=True)), ("speech", adaptive(5.0))):
        rig.add(name, spec)
        rig.all.note(free(rig, 2000))
        rig.serve(name)
    serving: dict[str, str | None] = {}
    for _ in range(30):
        serving = rig.tick(free(rig, 60))
    assert serving == {"digits": None, "speech": "small"}
    parked = rig.models["digits"]
    assert parked.rests, "the device is ready without it"
    assert parked.decision is not None
    assert "park" in parked.rests
    assert not parked.is_unloaded, "no client did it"
    assert rig.servers["digits"].running == 0
    for _ in range(2000):
        serving = rig.tick(free(rig, 2000))
        if serving["digits"] is not None:
            break
    assert serving["digits"] is not None
    assert not parked.rests


def test_a_package_that_comes_between_question_and_answer_is_left_alone(rig: Rig) -> None:
    for name in ("digits", "speech"):
        rig.add(name, adaptive(1.0))
        rig.all.note(free(rig, 2000))
        rig.serve(name)
    digits = rig.models["digits"]
    asking = digits.asked()
    assert asking is not None
    assert digits.decision is not None
    digits.withdraw()
    digits.follow(asking, digits.decision)
    assert digits.active() == (None, None)
    assert digits.asked() is None


def test_while_the_worker_of_one_model_starts_the_others_go_on(rig: Rig) -> None:
    for name in ("digits", "speech"):
        rig.add(name, adaptive(1.0))
    rig.all.note(free(rig, 2000))
    rig.serve("speech")
    begun, let_go = threading.Event(), threading.Event()

    def hang(call: str) -> None:
        if call == "prepare":
            begun.set()
            assert let_go.wait(PATIENCE_S)

    rig.servers["digits"].hook = hang
    install = threading.Thread(target=rig.serve, args=("digits",))
    install.start()
    try:
        assert begun.wait(PATIENCE_S)
        serving: dict[str, str | None] = {}
        for _ in range(30):
            serving = rig.tick(free(rig, 60))
        assert serving == {"digits": None, "speech": "small"}, "it has new readings"
    finally:
        let_go.set()
        install.join(PATIENCE_S)
    assert rig.models["digits"].active()[1] is not None


def test_two_that_grow_in_one_second_never_load_into_the_same_room(rig: Rig) -> None:
    names = ("digits", "speech", "video")
    rig.all.note(WARM)
    for name in names:
        rig.add(name, msgspec.structs.replace(RULES, low_memory_bytes=0))
        rig.serve(name)
    rig.tick(HOT)
    # Two of 300 MiB fit beside the old ones of 50; the third has to wait for the end of its own.
    rig.tick(msgspec.structs.replace(COOL, memory_available_bytes=750 * MIB))
    assert {name: rig.models[name].active()[1] for name in names} == dict.fromkeys(names, "best")
    assert [name for name in names if rig.servers[name].stopped_first] == ["video"]


def settled(rig: Rig) -> None:
    """Serve two models that nobody asks, until nothing is left to decide."""
    rig.all.note(COOL)
    for name in ("digits", "speech"):
        rig.add(name)
        rig.serve(name)
    for _ in range(70):
        rig.tick(COOL)


def decisions(rig: Rig, ticks: int, health: HealthSnapshot = COOL) -> int:
    """Return how often was decided in some seconds."""
    found = []
    for _ in range(ticks):
        rig.tick(health)
        found.append(rig.models["digits"].decision)  # kept, so that no other has its identity
    return len({id(decision) for decision in found})


def test_where_nobody_asks_a_decision_is_made_every_few_seconds(rig: Rig) -> None:
    settled(rig)
    assert decisions(rig, 50) == pytest.approx(10, abs=1)


def test_a_request_is_decided_for_in_the_same_second(rig: Rig) -> None:
    settled(rig)
    for _ in range(10):
        before = rig.models["digits"].decision
        rig.meters["speech"].came()
        rig.tick(COOL)
        assert rig.models["digits"].decision is not before


@pytest.mark.parametrize("how", ["heat", "memory", "policy", "pin", "busy"])
def test_what_changes_is_decided_for_in_the_same_second(rig: Rig, how: str) -> None:
    settled(rig)
    health = COOL
    if how == "heat":
        health = HOT
    elif how == "memory":
        health = msgspec.structs.replace(COOL, memory_available_bytes=100 * MIB)
    elif how == "busy":
        health = msgspec.structs.replace(COOL, cpu_busy_ratio=0.9)
    elif how == "policy":
        rig.models["digits"].policy = msgspec.structs.replace(RULES, dwell_s=1.0)
    else:
        rig.models["digits"].pinned = "small"
    before = rig.models["digits"].decision
    rig.tick(health)
    assert rig.models["digits"].decision is not before


def test_a_warm_device_decides_every_second(rig: Rig) -> None:
    settled(rig)
    warm = msgspec.structs.replace(COOL, headroom=0.65)
    assert decisions(rig, 20, warm) == 20
