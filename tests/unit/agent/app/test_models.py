"""The models of a device: made when they are wanted, each with its thread, gone when removed."""

from __future__ import annotations

import io
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent.app.models import Model, Models, Pending, restore_fault
from agent.errors import ControlError
from agent.install.states import State
from agent.install.thread import Installs
from agent.log import Log
from tests.simulators.device import SimulatedDevice, SimulatedModel, nothing
from tests.simulators.packages import SignedPackage, package, two_variants, variant
from tests.simulators.patience import PATIENCE_S, finished, until
from wire.clock import SystemClock
from wire.desired import ModelState
from wire.presence import ServedModel

NAMES = ("digits", "faces", "speech")
OLD = two_variants("1.0.0", best="old best", small="old small")
NEW = two_variants("2.0.0", best="new best", small="new small")
PACKAGES = {
    name: [
        package(f"{number}.0.0", [(variant("best"), f"{name} {number}".encode())], name=name)
        for number in range(1, 4)
    ]
    for name in NAMES
}
SPEECH = PACKAGES["speech"][0]
CLOCK = SystemClock()
MOST_PAUSE_S = 0.05
"""So orders come in every state of an install."""


class Rig:
    """A simulated device and the models of it; each has interrupts of its own, as in the agent."""

    def __init__(self, root: Path) -> None:
        self.device = SimulatedDevice(root)
        self.device.boot()
        self.everywhere = self.device.interrupts
        self.threads: list[threading.Thread] = []
        self.made: list[str] = []
        self.forgotten: list[str] = []
        self.models = Models(self._make, self._forget)
        for packages in ([OLD, NEW], *PACKAGES.values()):
            for one in packages:
                self.device.server.add(*one.blobs)

    def _make(self, name: str) -> Model:
        self.made.append(name)
        self.device.interrupts = self.everywhere.of_model()
        parts = SimulatedModel(self.device, name)
        self.device.models[name] = parts
        installs = Installs(
            parts.machine,
            parts.store,
            self.device.slots,
            self.device.interrupts,
            Log(self.device.clock, io.StringIO()),
            parts.installer.remove,
        )
        self.device.interrupts = self.everywhere
        return Model(
            name=name,
            store=parts.store,
            model_server=parts.serving,
            adaptation=parts.adaptation,
            installer=parts.installer,
            hooked=parts.hooked,
            machine=parts.machine,
            installs=installs,
        )

    def _forget(self, model: Model) -> None:
        model.installs.end()
        self.forgotten.append(model.name)

    def start(self) -> None:
        self.models.start(self._guarded)

    def _guarded(self, run: Callable[[], None]) -> Callable[[], None]:
        def noted() -> None:
            self.threads.append(threading.current_thread())
            run()

        return noted

    def offer(self, revision: int, release: SignedPackage) -> None:
        name = release.index.name
        self.models.offer(
            ModelState(name=name, revision=revision, release=release.ref), has_sources=False
        )

    def outcomes(self, name: str) -> list[tuple[int, str]]:
        found = [report for report in self.device.heard.outcomes if report.model == name]
        return [(report.revision, report.outcome) for report in found]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    """Return a device without models; its threads end with the test."""
    rig = Rig(tmp_path)
    yield rig
    rig.everywhere.stop()
    rig.models.join(PATIENCE_S)
    for thread in rig.threads:
        finished(thread)


def test_a_model_is_made_once_and_found_by_its_name(rig: Rig) -> None:
    speech, digits = rig.models.ensure("speech"), rig.models.ensure("digits")
    assert rig.models.ensure("speech") is speech
    assert rig.made == ["speech", "digits"]
    assert rig.models.names == ("digits", "speech")
    assert list(rig.models) == [digits, speech]
    assert rig.models.get("speech") is rig.models.named("speech") is speech
    assert rig.models.get("faces") is None


def test_the_only_model_needs_no_name(rig: Rig) -> None:
    digits = rig.models.ensure("digits")
    assert rig.models.named(None) is digits


@pytest.mark.parametrize(
    ("names", "name", "fault", "remedy"),
    [
        ((), None, "no model yet", "wait until a release has come"),
        ((), "digits", "no model 'digits'", "this device has: none"),
        (
            ("digits", "speech"),
            None,
            "several models: digits, speech",
            "name one of them with --model NAME",
        ),
        (("digits", "speech"), "faces", "no model 'faces'", "this device has: digits, speech"),
        (("digits",), 7, "no model '7'", "this device has: digits"),
    ],
)
def test_a_name_that_says_nothing_is_refused_with_the_names_there_are(
    rig: Rig, names: tuple[str, ...], name: object, fault: str, remedy: str
) -> None:
    for each in names:
        rig.models.ensure(each)
    with pytest.raises(ControlError, match=fault) as caught:
        rig.models.named(name)
    assert caught.value.remedy == remedy


def test_what_is_offered_before_the_start_is_installed_after_it(rig: Rig) -> None:
    rig.offer(1, OLD)
    rig.offer(2, SPEECH)
    assert rig.threads == []
    assert rig.models.pending == (
        Pending("digits", 1, OLD.digest),
        Pending("speech", 2, SPEECH.digest),
    )
    rig.start()
    until(lambda: rig.outcomes("digits") and rig.outcomes("speech"))
    until(lambda: rig.models.pending == ())
    assert [model.served for model in rig.models] == [
        ServedModel(name="digits", revision=1, release=OLD.digest, variant="best"),
        ServedModel(name="speech", revision=2, release=SPEECH.digest, variant="best"),
    ]


def test_a_model_that_comes_later_gets_its_thread(rig: Rig) -> None:
    rig.start()
    rig.offer(1, OLD)
    until(lambda: rig.outcomes("digits"))
    rig.offer(2, SPEECH)
    until(lambda: rig.outcomes("speech"))
    assert len(rig.threads) == 2
    assert rig.outcomes("digits") == [(1, "succeeded")]


def test_an_install_under_way_is_pending_as_is_what_waits_behind_it(rig: Rig) -> None:
    gate = threading.Event()

    def hook(where: str, state: State) -> None:
        if (where, state) == ("effect", State.CONFIRMING):
            assert gate.wait(PATIENCE_S)

    rig.device.hook = hook
    rig.start()
    rig.offer(1, OLD)
    until(lambda: rig.models.named(None).store.state.state is State.CONFIRMING)
    rig.offer(2, NEW)
    assert rig.models.pending == (
        Pending("digits", 1, OLD.digest),
        Pending("digits", 2, NEW.digest),
    )
    gate.set()
    until(lambda: rig.outcomes("digits")[-1:] == [(2, "succeeded")])


def test_a_model_that_is_removed_is_gone_with_its_thread(rig: Rig) -> None:
    rig.start()
    rig.offer(1, OLD)
    rig.offer(1, SPEECH)
    until(lambda: rig.outcomes("digits") and rig.outcomes("speech"))
    rig.models.remove("digits")
    rig.models.remove("faces")
    until(lambda: rig.forgotten)
    assert (rig.forgotten, rig.models.names) == (["digits"], ("speech",))
    assert rig.device.slots.serving() == {"speech": SPEECH.digest}
    assert rig.device.slots.whole() == (SPEECH.digest,)
    until(lambda: sum(thread.is_alive() for thread in rig.threads) == 1)


def test_a_model_that_comes_back_is_made_anew(rig: Rig) -> None:
    rig.start()
    rig.offer(1, OLD)
    until(lambda: rig.outcomes("digits"))
    rig.models.remove("digits")
    until(lambda: rig.forgotten)
    rig.offer(3, OLD)
    until(lambda: len(rig.outcomes("digits")) == 2)
    assert rig.made == ["digits", "digits"]
    assert rig.outcomes("digits")[-1] == (3, "succeeded")
    assert rig.device.slots.serving() == {"digits": OLD.digest}


def test_a_model_that_is_wanted_again_during_its_removal_keeps_its_thread(rig: Rig) -> None:
    rig.start()
    rig.offer(1, OLD)
    until(lambda: rig.outcomes("digits"))
    removing, gate = threading.Event(), threading.Event()

    def hook(where: str, _state: State) -> None:
        if where == "withdraw":
            removing.set()
            assert gate.wait(PATIENCE_S)

    rig.device.hook = hook
    rig.models.remove("digits")
    assert removing.wait(PATIENCE_S)
    rig.offer(2, NEW)
    rig.device.hook = nothing
    gate.set()
    until(lambda: (2, "succeeded") in rig.outcomes("digits"))
    assert (rig.made, rig.forgotten) == (["digits"], [])
    assert rig.device.slots.serving() == {"digits": NEW.digest}
    assert rig.device.slots.whole() == (NEW.digest,)


def test_what_cannot_serve_after_a_restart_says_why(rig: Rig) -> None:
    rig.start()
    rig.offer(1, OLD)
    until(lambda: rig.outcomes("digits"))
    model = rig.models.named("digits")
    assert restore_fault(model) is None
    model.adaptation.withdraw()
    rig.device.bad_load.update({"old best", "old small"})
    fault = restore_fault(model)
    assert fault is not None
    assert restore_fault(rig.models.ensure("speech")) is None, "it has nothing to serve"


@pytest.mark.parametrize("seed", range(3))
def test_whatever_is_ordered_and_removed_at_the_end_each_model_is_as_it_was_ordered_last(
    rig: Rig, seed: int
) -> None:
    rng = random.Random(seed)
    rig.start()
    last: dict[str, SignedPackage] = {}
    for revision in range(1, 40):
        name = rng.choice(NAMES)
        if rng.random() < 0.3:
            rig.models.remove(name)
            last.pop(name, None)
        else:
            last[name] = rng.choice(PACKAGES[name])
            rig.offer(revision, last[name])
        CLOCK.sleep(rng.random() * MOST_PAUSE_S)

    def is_settled() -> bool:
        served = {model.name: model.served.release for model in rig.models}
        wanted = {name: release.digest for name, release in last.items()}
        idle = all(not model.installs.has_job for model in rig.models)
        return idle and rig.models.pending == () and served == wanted

    until(is_settled)
    wanted = {name: release.digest for name, release in last.items()}
    assert rig.device.slots.serving() == wanted
    assert set(rig.device.files.state.models) == set(wanted)
    kept = set(wanted.values()) | rig.device.files.state.wanted
    assert set(rig.device.slots.whole()) <= kept
    assert all(outcome == "succeeded" for name in NAMES for _, outcome in rig.outcomes(name))
