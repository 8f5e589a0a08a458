"""The install threads: newest desired state first, each gets its outcome, a stop ends them."""

from __future__ import annotations

import errno
import io
import itertools
import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import pytest

from agent.errors import FetchError, StorageError
from agent.install.budget.settings import NetworkSettings
from agent.install.fetch.settings import DeliverySettings
from agent.install.states import State
from agent.install.thread import Installs
from agent.log import Log
from tests.simulators.archives import Held, file_of
from tests.simulators.clock import FakeClock
from tests.simulators.device import SimulatedDevice, SimulatedModel, nothing, wanted
from tests.simulators.packages import SignedPackage, desired, package, two_variants, variant
from tests.simulators.patience import PATIENCE_S, finished, until
from wire.clock import SystemClock
from wire.delivery import Chunk
from wire.policy import PolicySpec

CLOCK = SystemClock()
OLD = two_variants("1.0.0", best="old best", small="old small")
NEW = two_variants("2.0.0", best="new best", small="new small")
NEWER = two_variants("3.0.0", best="newer best", small="newer small")
SPEECH = package("1.0.0", [(variant("best"), b"speech best")], name="speech")


@pytest.fixture
def device(tmp_path: Path) -> SimulatedDevice:
    """Return a device on which the old package serves."""
    device = SimulatedDevice(tmp_path)
    device.boot()
    device.install(1, OLD)
    device.server.add(*NEW.blobs, *NEWER.blobs)
    return device


def offer(installs: Installs, revision: int, release: SignedPackage, **fields: Any) -> None:
    """Offer what a desired state says, as if it had been checked."""
    installs.offer(wanted(desired(revision, release, **fields)[0]))


def installs_of(device: SimulatedDevice, name: str = "digits") -> Installs:
    """Return the installs of a model, whose thread does not run yet."""
    model = device.models[name]
    log = Log(CLOCK, io.StringIO())
    return Installs(
        model.machine, model.store, device.slots, device.interrupts, log, model.installer.remove
    )


class Running:
    """Threads of installs, each with the name of its model."""

    def __init__(self, device: SimulatedDevice, installs: Mapping[str, Installs]) -> None:
        self.removed: dict[str, bool] = {}
        """By model: what its thread returned, as soon as it has ended."""

        self._device = device
        self._threads = {
            name: threading.Thread(target=self._run, args=(name, each), name=name)
            for name, each in installs.items()
        }

    def __enter__(self) -> Self:
        for thread in self._threads.values():
            thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._device.interrupts.stop()
        for thread in self._threads.values():
            finished(thread)

    def ended(self, name: str) -> bool:
        """Wait until a thread has ended, and return what it returned."""
        finished(self._threads[name])
        return self.removed[name]

    def _run(self, name: str, installs: Installs) -> None:
        self.removed[name] = installs.run()


def test_a_desired_state_is_installed(device: SimulatedDevice, installs: Installs) -> None:
    offer(installs, 2, NEW)
    until(lambda: device.heard.outcomes[-1].revision == 2)
    assert device.adaptation.active() == (NEW.digest, "best")
    assert device.store.state.revision == 2
    assert installs.newer is None


def test_a_newer_desired_state_ends_an_install_that_waits_for_its_chunks(
    device: SimulatedDevice, installs: Installs
) -> None:
    lost = {entry.sha256 for entry in NEW.index.files}

    def lose(chunk: Chunk) -> Chunk | None:
        return None if chunk.sha256 in lost else chunk

    device.server.tamper = lose
    offer(installs, 2, NEW)
    until(lambda: device.store.state.state is not State.IDLE)
    lost -= {entry.sha256 for entry in NEWER.index.files}
    offer(installs, 3, NEWER)
    until(lambda: device.heard.outcomes[-1].revision == 3)
    assert device.adaptation.active() == (NEWER.digest, "best")
    assert 2 not in {report.revision for report in device.heard.outcomes}


def test_another_policy_does_not_end_the_install_of_the_same_package(
    device: SimulatedDevice, installs: Installs
) -> None:
    gate = threading.Event()
    begun: list[State] = []

    def hook(where: str, state: State) -> None:
        if where == "effect":
            begun.append(state)
            gate.wait(PATIENCE_S)

    device.hook = hook
    offer(installs, 2, NEW)
    until(lambda: device.store.state.state is State.PREFLIGHT)
    offer(installs, 3, NEW, policy=PolicySpec(kind="adaptive"))
    waiting = installs.newer
    assert waiting is not None
    assert waiting.revision == 3
    gate.set()
    until(lambda: device.heard.outcomes[-1].revision == 3)
    device.hook = nothing
    assert begun.count(State.PREFLIGHT) == 1
    assert State.REVERTING not in begun
    assert [r.revision for r in device.heard.outcomes] == [1, 2, 3]
    assert device.adaptation.active() == (NEW.digest, "best")


def test_the_same_desired_state_during_its_install_is_reported_after_it(
    device: SimulatedDevice, installs: Installs
) -> None:
    gate = threading.Event()

    def hook(where: str, _state: State) -> None:
        if where == "effect":
            gate.wait(PATIENCE_S)

    device.hook = hook
    offer(installs, 2, NEW)
    until(lambda: device.store.state.state is State.PREFLIGHT)
    offer(installs, 2, NEW)
    gate.set()
    until(lambda: [r.revision for r in device.heard.outcomes].count(2) == 2)
    assert device.heard.outcomes[-1] == device.heard.outcomes[-2]
    device.hook = nothing


def test_of_two_waiting_desired_states_the_newer_is_taken(device: SimulatedDevice) -> None:
    installs = installs_of(device)
    offer(installs, 2, NEW)
    offer(installs, 3, NEWER)
    with Running(device, {"digits": installs}):
        until(lambda: device.heard.outcomes[-1].revision == 3)
    assert {report.revision for report in device.heard.outcomes} == {1, 3}


@pytest.mark.parametrize("release", [NEW, NEWER])
def test_a_full_storage_loses_what_was_handed_over_unless_it_is_wanted(
    device: SimulatedDevice, installs: Installs, release: SignedPackage
) -> None:
    device.hand_over(Held(file_of(NEW)))
    refused: list[str] = []

    def hook(where: str, _state: State) -> None:
        is_full = device.slots.preloaded() is not None if release is NEWER else len(refused) < 2
        if where.startswith("write ") and is_full:
            refused.append(where)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    device.hook = hook
    offer(installs, 2, release)
    until(lambda: device.heard.outcomes[-1].revision == 2)
    device.hook = nothing
    assert refused
    assert device.adaptation.active() == (release.digest, "best")
    if release is NEW:
        files = {entry.sha256 for entry in NEW.index.files}
        assert not files & {sha256 for sha256, _ in device.server.sent}


def check_removed(device: SimulatedDevice) -> None:
    """Nothing of digits is left on the device."""
    assert device.adaptation.active() == (None, None)
    assert device.serving.running == 0
    assert (device.slots.whole(), device.slots.arriving()) == ((), ())
    assert list(device.slots.parts.iterdir()) == []
    assert device.slots.serving() == {}
    assert device.files.state.models == {}
    device.hook = nothing
    device.reboot()
    assert device.adaptation.active() == (None, None)


def test_a_model_that_is_idle_is_removed_at_once(device: SimulatedDevice) -> None:
    installs = installs_of(device)
    told = len(device.heard.reports)
    with Running(device, {"digits": installs}) as threads:
        installs.offer_removal()
        assert threads.ended("digits")
    assert len(device.heard.reports) == told, "there is no install to report"
    check_removed(device)


def test_a_removal_ends_an_install_that_waits_for_its_chunks(device: SimulatedDevice) -> None:
    installs = installs_of(device)
    kept = {entry.sha256 for entry in NEW.index.files if entry.path != "manifest.json"}
    device.server.tamper = lambda chunk: None if chunk.sha256 in kept else chunk
    with Running(device, {"digits": installs}) as threads:
        offer(installs, 2, NEW)
        until(lambda: device.store.state.state is State.FETCHING)
        installs.offer_removal()
        assert threads.ended("digits")
    assert 2 not in {report.revision for report in device.heard.outcomes}
    check_removed(device)


def gate_at(device: SimulatedDevice, state: State, name: str = "digits") -> threading.Event:
    """Let an effect of a model wait for an event."""
    gate = threading.Event()

    def hook(where: str, at: State) -> None:
        if (where, at, threading.current_thread().name) == ("effect", state, name):
            assert gate.wait(PATIENCE_S)

    device.hook = hook
    return gate


def test_a_removal_lets_an_install_end_that_must_not_be_abandoned(device: SimulatedDevice) -> None:
    installs, gate = installs_of(device), gate_at(device, State.CONFIRMING)
    with Running(device, {"digits": installs}) as threads:
        offer(installs, 2, NEW)
        until(lambda: device.store.state.state is State.CONFIRMING)
        installs.offer_removal()
        gate.set()
        assert threads.ended("digits")
    last = device.heard.outcomes[-1]
    assert (last.revision, last.outcome) == (2, "succeeded")
    check_removed(device)


@pytest.mark.parametrize("revision", [2, 3])
def test_what_is_wanted_again_before_it_is_removed_stays(
    device: SimulatedDevice, revision: int
) -> None:
    installs, gate = installs_of(device), gate_at(device, State.PREFLIGHT)
    with Running(device, {"digits": installs}) as threads:
        offer(installs, 2, NEW)
        until(lambda: device.store.state.state is State.PREFLIGHT)
        installs.offer_removal()
        offer(installs, revision, NEW)
        gate.set()
        until(lambda: device.heard.outcomes[-1].revision == revision)
        assert threads.removed == {}
    assert device.adaptation.active() == (NEW.digest, "best")
    assert threads.removed == {"digits": False}, "the stop has ended it"


def test_what_is_wanted_again_while_it_is_removed_is_installed_anew(
    device: SimulatedDevice,
) -> None:
    installs = installs_of(device)
    device.store.update(pinned="small")
    device.adaptation.pinned = "small"

    def want_again(where: str, _state: State) -> None:
        if where == "withdraw":
            device.hook = nothing
            offer(installs, 1, OLD)

    device.hook = want_again
    installs.offer_removal()
    with Running(device, {"digits": installs}) as threads:
        assert threads.ended("digits")
        assert installs.has_job
        assert device.slots.whole() == ()
        device.heard.reports.clear()
        with Running(device, {"digits": installs}):
            until(lambda: device.heard.outcomes)
    assert [report.outcome for report in device.heard.outcomes] == ["succeeded"]
    assert device.slots.serving() == {"digits": OLD.digest}
    assert device.store.state.pinned is None, "it is a new model"
    assert device.adaptation.active() == (OLD.digest, "best")


def test_a_removal_that_the_storage_refuses_is_tried_again(device: SimulatedDevice) -> None:
    tries: list[str] = []

    def remove() -> None:
        tries.append("remove")
        if len(tries) < 3:
            raise StorageError("cannot remove an old package")
        device.installer.remove()

    log = Log(CLOCK, io.StringIO())
    installs = Installs(device.machine, device.store, device.slots, device.interrupts, log, remove)
    with Running(device, {"digits": installs}) as threads:
        installs.offer_removal()
        assert threads.ended("digits")
    assert len(tries) == 3
    check_removed(device)


def test_a_stop_ends_a_removal_that_waits_for_its_turn(device: SimulatedDevice) -> None:
    installs = installs_of(device)
    with device.interrupts.turn():
        installs.offer_removal()
        with Running(device, {"digits": installs}) as threads:
            until(lambda: not installs.has_job)
            device.interrupts.stop()
            assert not threads.ended("digits")
    assert device.adaptation.active() == (OLD.digest, "best")
    assert device.slots.serving() == {"digits": OLD.digest}


class Pair:
    """A device with two models, each with interrupts of its own, as in the agent."""

    def __init__(
        self, root: Path, networks: tuple[NetworkSettings, ...] = (), clock: FakeClock | None = None
    ) -> None:
        self.device = SimulatedDevice(root, names=("digits", "speech"))
        self.device.clock = clock or self.device.clock
        self.device.delivery = DeliverySettings(networks=networks)
        self.device.boot()
        self.installs: dict[str, Installs] = {}
        everywhere = self.device.interrupts
        for name in self.device.names:
            self.device.interrupts = everywhere.of_model(name)
            self.device.models[name] = SimulatedModel(self.device, name)
            self.installs[name] = installs_of(self.device, name)
        self.device.interrupts = everywhere
        self.device.server.add(*NEW.blobs, *NEWER.blobs, *SPEECH.blobs)

    def offer(self, revision: int, release: SignedPackage) -> None:
        offer(self.installs[release.index.name], revision, release)

    def outcomes(self, name: str) -> list[tuple[int, str]]:
        return [
            (report.revision, report.outcome)
            for report in self.device.heard.outcomes
            if report.model == name
        ]

    def phases(self, name: str) -> list[str]:
        return [report.phase for report in self.device.heard.reports if report.model == name]

    def state(self, name: str) -> State:
        return self.device.models[name].store.state.state

    def serving(self) -> dict[str, str | None]:
        return {name: model.adaptation.active()[0] for name, model in self.device.models.items()}


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    """Return a device with two models, of which nothing is installed yet."""
    return Pair(tmp_path)


def test_an_install_that_fails_again_and_again_holds_up_no_other_model(pair: Pair) -> None:
    mended = threading.Event()

    def road() -> Iterator[bool]:
        """Tell that there is no connection, until there is: then no attempt counts."""
        while True:
            CLOCK.sleep(0.005)
            yield mended.is_set()

    def hook(where: str, state: State) -> None:
        is_digits = threading.current_thread().name == "digits"
        if is_digits and (where, state) == ("effect", State.FETCHING) and not mended.is_set():
            raise FetchError("no road")

    pair.device.heard.road, pair.device.hook = road(), hook
    with Running(pair.device, pair.installs):
        pair.offer(1, NEW)
        until(lambda: pair.state("digits") is State.FETCHING)
        pair.offer(2, SPEECH)
        until(lambda: pair.outcomes("speech"))
        assert pair.state("digits") is State.FETCHING
        assert pair.serving() == {"digits": None, "speech": SPEECH.digest}
        mended.set()
        until(lambda: pair.outcomes("digits"))
    assert pair.outcomes("digits") == [(1, "succeeded")]
    assert pair.outcomes("speech") == [(2, "succeeded")]
    assert pair.serving() == {"digits": NEW.digest, "speech": SPEECH.digest}


def test_an_install_that_fails_takes_nothing_from_the_other_model(pair: Pair) -> None:
    pair.device.bad_golden.add("new best")
    with Running(pair.device, pair.installs):
        pair.offer(1, SPEECH)
        pair.offer(1, NEW)
        until(lambda: pair.outcomes("digits") and pair.outcomes("speech"))
    assert pair.outcomes("digits") == [(1, "failed")]
    assert pair.outcomes("speech") == [(1, "succeeded")]
    assert pair.device.slots.serving() == {"speech": SPEECH.digest}
    assert pair.device.slots.whole() == (SPEECH.digest,)


def test_who_waits_for_the_install_of_another_model_says_so(pair: Pair) -> None:
    gate = gate_at(pair.device, State.FETCHING)

    def told() -> list[str]:
        return [r.detail for r in pair.device.heard.reports if r.model == "speech" and r.detail]

    with Running(pair.device, pair.installs):
        pair.offer(1, NEW)
        until(lambda: pair.state("digits") is State.FETCHING)
        pair.offer(1, SPEECH)
        until(told)
        gate.set()
        until(lambda: pair.outcomes("digits") and pair.outcomes("speech"))
    assert set(told()) == {"the install of model digits to end"}
    of_speech = [r.detail for r in pair.device.heard.reports if r.model == "speech"]
    assert "" in of_speech[of_speech.index(told()[0]) :], "it says when it goes on"
    assert pair.serving() == {"digits": NEW.digest, "speech": SPEECH.digest}


def test_no_two_effects_are_done_at_once(pair: Pair) -> None:
    inside: set[str] = set()
    most: list[int] = []

    def hook(where: str, _state: State) -> None:
        name = threading.current_thread().name
        if where == "effect":
            inside.add(name)
            CLOCK.sleep(0.001)
            most.append(len(inside))
        if where == "effected":
            inside.discard(name)

    pair.device.hook = hook
    with Running(pair.device, pair.installs):
        pair.offer(1, NEW)
        pair.offer(1, SPEECH)
        until(lambda: pair.outcomes("digits") and pair.outcomes("speech"))
    assert set(most) == {1}
    assert len(most) >= 14


def test_a_newer_desired_state_of_one_model_does_not_end_the_install_of_the_other(
    pair: Pair,
) -> None:
    gate = gate_at(pair.device, State.FETCHING, "speech")
    with Running(pair.device, pair.installs):
        pair.offer(1, SPEECH)
        until(lambda: pair.state("speech") is State.FETCHING)
        pair.offer(1, NEW)
        until(lambda: "preflight" in pair.phases("digits"))
        pair.offer(2, NEWER)
        until(lambda: "reverting" in pair.phases("digits"))
        gate.set()
        until(lambda: pair.outcomes("digits") and pair.outcomes("speech"))
    assert pair.outcomes("digits") == [(2, "succeeded")]
    assert pair.outcomes("speech") == [(1, "succeeded")]
    assert "reverting" not in pair.phases("speech")


def test_a_removal_of_one_model_leaves_the_packages_of_the_other(pair: Pair) -> None:
    with Running(pair.device, pair.installs) as threads:
        pair.offer(1, NEW)
        pair.offer(1, SPEECH)
        until(lambda: pair.outcomes("digits") and pair.outcomes("speech"))
        gate = gate_at(pair.device, State.FETCHING, "speech")
        second = package("2.0.0", [(variant("best"), b"speech two" * 300)], name="speech")
        pair.device.server.add(*second.blobs)
        pair.offer(2, second)
        until(lambda: pair.state("speech") is State.FETCHING)
        pair.installs["digits"].offer_removal()
        gate.set()
        assert threads.ended("digits")
        until(lambda: (2, "succeeded") in pair.outcomes("speech"))
        assert set(threads.removed) == {"digits"}
    assert pair.device.slots.serving() == {"speech": second.digest}
    assert set(pair.device.slots.whole()) == {SPEECH.digest, second.digest}
    assert set(pair.device.files.state.models) == {"speech"}
    assert pair.serving() == {"digits": None, "speech": second.digest}


def test_a_handover_goes_before_the_installs_of_all_models(pair: Pair) -> None:
    attempts = itertools.count()
    threads: list[threading.Thread] = []

    def hand_over() -> None:
        pair.device.interrupts.interject(
            lambda: done.append(pair.device.hand_over(Held(file_of(NEWER))).digest), lambda: None
        )

    def hook(where: str, state: State) -> None:
        if (where, state) == ("effect", State.FETCHING) and next(attempts) == 0:
            threads.append(threading.Thread(target=hand_over))
            threads[0].start()

    done: list[str] = []
    pair.device.hook = hook
    with Running(pair.device, pair.installs):
        pair.offer(1, NEW)
        pair.offer(1, SPEECH)
        until(lambda: pair.outcomes("digits") and pair.outcomes("speech"))
        until(lambda: done)
        finished(threads[0])
    assert done == [NEWER.digest]
    assert pair.device.slots.preloaded() == NEWER.digest
    assert pair.serving() == {"digits": NEW.digest, "speech": SPEECH.digest}


class CalmClock(FakeClock):
    """A clock on which every sleep takes a moment of real time: a night is far away."""

    def sleep(self, duration_s: float) -> None:
        CLOCK.sleep(0.002)
        self.advance(duration_s)


BY_NIGHT = NetworkSettings(name="cellular", interfaces=("wwan*",), hours="01:00-05:00")


def test_an_override_lets_one_model_go_on_while_the_other_waits_for_its_network(
    tmp_path: Path,
) -> None:
    route = tmp_path / "proc/net/route"
    route.parent.mkdir(parents=True)
    route.write_text("head\nwwan0 00000000 0 0003 0 0 0 00000000 0 0 0\n")
    pair = Pair(tmp_path, networks=(BY_NIGHT,), clock=CalmClock())
    holdings = {name: model.hooked.holding for name, model in pair.device.models.items()}

    def done() -> set[str]:
        return {name for name in pair.device.names if pair.outcomes(name)}

    with Running(pair.device, pair.installs):
        pair.offer(1, NEW)
        pair.offer(1, SPEECH)
        until(lambda: all(holding.waits_for for holding in holdings.values()))
        pair.device.override.allow(3600.0)
        (first,) = until(done)
        (second,) = {"digits", "speech"} - {first}
        assert pair.outcomes(first) == [(1, "succeeded")]
        until(lambda: holdings[second].waits_for)
        assert pair.outcomes(second) == [], "the override was for one install"
        pair.device.override.allow(3600.0)
        until(lambda: pair.outcomes(second) == [(1, "succeeded")])
