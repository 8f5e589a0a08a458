"""Turns, handovers that go first, newer desired states and stops, with real threads."""

from __future__ import annotations

import contextlib
import functools
import random
import threading
from collections.abc import Callable, Iterator

import pytest

from agent.errors import ControlError, InterjectedError, StoppedError, SupersededError
from agent.interrupts import Interrupts
from tests.simulators.patience import PATIENCE_S, finished, until
from wire.clock import SystemClock
from wire.errors import FleetError

CLOCK = SystemClock()
PAUSE_S = 0.001


class Runner:
    """A thread whose end is known."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.fault: FleetError | None = None
        self._work = work
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def ended(self) -> FleetError | None:
        """Wait for its end, and return what it raised."""
        finished(self._thread)
        return self.fault

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._work()
        except FleetError as exc:
            self.fault = exc


@pytest.fixture
def device() -> Iterator[Interrupts]:
    """Return the interrupts of a device; whatever a test leaves ends with it."""
    device = Interrupts(CLOCK)
    yield device
    device.stop()


def goes_first(interrupts: Interrupts) -> bool:
    """Tell whether an install would have to let a handover go first."""
    try:
        interrupts.check(abandon=True)
    except InterjectedError:
        return True
    return False


def nobody_cares() -> None:
    """Say that somebody still waits."""


class Gate:
    """Work that has begun, and goes on when a test says so."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.go_on = threading.Event()

    def pass_through(self) -> None:
        self.begun.set()
        assert self.go_on.wait(PATIENCE_S)


def holding(interrupts: Interrupts) -> tuple[Gate, Runner]:
    """Let a thread have the turn until its gate opens."""
    gate = Gate()

    def work() -> None:
        with interrupts.turn():
            gate.pass_through()

    runner = Runner(work)
    assert gate.begun.wait(PATIENCE_S)
    return gate, runner


def test_one_thread_at_a_time_has_the_turn(device: Interrupts) -> None:
    inside: list[int] = []
    most: list[int] = []

    def work() -> None:
        interrupts = device.of_model()
        for number in range(50):
            with interrupts.turn():
                inside.append(number)
                CLOCK.sleep(0.0)
                most.append(len(inside))
                inside.pop()

    runners = [Runner(work) for _ in range(4)]
    assert [runner.ended() for runner in runners] == [None] * 4
    assert most == [1] * 200


def test_a_turn_that_ends_with_an_error_is_free_again(device: Interrupts) -> None:
    with pytest.raises(ControlError), device.turn():
        raise ControlError("no")
    with device.turn():
        pass


def test_who_waits_for_the_turn_is_told_so_once(device: Interrupts) -> None:
    gate, holder = holding(device)
    told = threading.Event()
    calls: list[str] = []

    def tell() -> None:
        calls.append("waits")
        told.set()

    def work() -> None:
        with device.of_model().turn(on_wait=tell):
            calls.append("has it")

    waiter = Runner(work)
    assert told.wait(PATIENCE_S)
    gate.go_on.set()
    assert (holder.ended(), waiter.ended()) == (None, None)
    assert calls == ["waits", "has it"]


def test_a_turn_that_is_free_is_not_waited_for(device: Interrupts) -> None:
    calls: list[str] = []
    with device.turn(on_wait=lambda: calls.append("waits")):
        pass
    assert calls == []


def test_out_of_turn_another_thread_has_it_and_then_this_one_again(device: Interrupts) -> None:
    order: list[str] = []

    def other() -> None:
        with device.of_model().turn():
            order.append("other")

    with device.turn():
        runner = Runner(other)
        order.append("before")
        with device.out_of_turn():
            assert runner.ended() is None
        order.append("after")
        again = Runner(other)
        order.append("still")
    assert again.ended() is None
    assert order == ["before", "other", "after", "still", "other"]


def test_out_of_turn_an_error_comes_out_and_the_turn_is_free_at_the_end(
    device: Interrupts,
) -> None:
    with pytest.raises(ControlError), device.turn(), device.out_of_turn():
        raise ControlError("no")
    gate, holder = holding(device)
    gate.go_on.set()
    assert holder.ended() is None


def test_a_thread_that_has_no_turn_gives_none_away(device: Interrupts) -> None:
    gate, holder = holding(device)
    told = threading.Event()
    with device.out_of_turn():
        waiter = Runner(lambda: take(device.of_model(), on_wait=told.set))
        assert told.wait(PATIENCE_S)
        assert waiter.is_running
    gate.go_on.set()
    assert (holder.ended(), waiter.ended()) == (None, None)


def take(
    interrupts: Interrupts, *, abandon: bool = False, on_wait: Callable[[], None] = nobody_cares
) -> None:
    """Have the turn, and nothing to do."""
    with interrupts.turn(abandon=abandon, on_wait=on_wait):
        pass


def test_who_has_the_turn_is_known_by_the_name_of_its_model(device: Interrupts) -> None:
    digits, speech = device.of_model("digits"), device.of_model("speech")
    assert speech.owning_model == ""
    with digits.turn():
        assert speech.owning_model == "digits"
        with digits.out_of_turn():
            assert speech.owning_model == ""
        assert speech.owning_model == "digits"
    with device.turn():
        assert digits.owning_model == "", "what belongs to no model has no name"


def test_what_supersedes_one_model_leaves_the_others(device: Interrupts) -> None:
    digits, speech = device.of_model(), device.of_model()
    gate, holder = holding(device)
    had: list[str] = []

    def work(name: str, interrupts: Interrupts) -> None:
        with interrupts.turn(abandon=True):
            had.append(name)

    waiters = [Runner(lambda: work("digits", digits)), Runner(lambda: work("speech", speech))]
    digits.supersede()
    assert isinstance(waiters[0].ended(), SupersededError)
    with pytest.raises(SupersededError):
        digits.check(abandon=True)
    digits.check(abandon=False)
    speech.check(abandon=True)
    gate.go_on.set()
    assert (holder.ended(), waiters[1].ended()) == (None, None)
    assert had == ["speech"]
    digits.clear_superseded()
    digits.check(abandon=True)


def test_a_stop_ends_every_wait(device: Interrupts) -> None:
    models = [device.of_model() for _ in range(3)]
    gate = Gate()
    handover = Runner(lambda: device.interject(gate.pass_through, nobody_cares))
    assert gate.begun.wait(PATIENCE_S)
    waiters = [
        Runner(lambda: take(models[0])),
        Runner(lambda: models[1].wait(PATIENCE_S, abandon=False)),
        Runner(models[2].give_way),
    ]
    device.stop()
    assert [type(waiter.ended()) for waiter in waiters] == [StoppedError] * 3
    assert all(model.stopping for model in models)
    gate.go_on.set()
    assert handover.ended() is None, "what was begun looks after itself"


def test_a_stop_ends_a_handover_that_waits(device: Interrupts) -> None:
    gate, holder = holding(device)
    done: list[str] = []
    handover = Runner(lambda: device.interject(lambda: done.append("piece"), nobody_cares))
    until(lambda: goes_first(device))
    device.stop()
    assert isinstance(handover.ended(), StoppedError)
    gate.go_on.set()
    assert holder.ended() is None
    assert done == []


def test_sleepers_are_woken_when_it_stops_and_when_one_goes_first(device: Interrupts) -> None:
    seen: list[tuple[str, bool]] = []

    def wake() -> None:
        seen.append(("digits", device.stopping))

    def forgotten() -> None:
        seen.append(("speech", device.stopping))

    device.wake_on_stop(wake)
    device.of_model().wake_on_stop(forgotten)
    device.interject(nobody_cares, nobody_cares)
    assert seen == [("digits", False), ("speech", False)]
    device.sleep_no_more(forgotten)
    device.sleep_no_more(forgotten)
    device.stop()
    assert seen[2:] == [("digits", True)]


def test_a_handover_goes_first_and_the_install_begins_its_effect_again(
    device: Interrupts,
) -> None:
    order: list[str] = []
    begun = threading.Event()
    model = device.of_model()

    def install() -> None:
        while "piece" not in order:
            try:
                with model.turn(abandon=True):
                    order.append("effect")
                    begun.set()
                    model.wait(PATIENCE_S, abandon=True)
            except InterjectedError:
                order.append("leaves")
                model.give_way()
        with model.turn(abandon=True):
            order.append("effect")

    runner = Runner(install)
    assert begun.wait(PATIENCE_S)
    device.interject(lambda: order.append("piece"), nobody_cares)
    assert runner.ended() is None
    assert order == ["effect", "leaves", "piece", "effect"]


def test_every_install_that_waits_lets_it_go_first(device: Interrupts) -> None:
    gate, holder = holding(device)
    waiters = [Runner(lambda: take(device.of_model(), abandon=True)) for _ in range(3)]
    handover = Runner(lambda: device.interject(nobody_cares, nobody_cares))
    assert [type(waiter.ended()) for waiter in waiters] == [InterjectedError] * 3
    assert handover.is_running, "the holder is at no safe point"
    gate.go_on.set()
    assert (holder.ended(), handover.ended()) == (None, None)


def test_what_must_not_be_abandoned_is_not_disturbed_by_it(device: Interrupts) -> None:
    order: list[str] = []
    with device.turn():
        handover = Runner(lambda: device.interject(lambda: order.append("piece"), nobody_cares))
        until(lambda: goes_first(device))
        device.wait(PAUSE_S, abandon=False)
        order.append("effect")
    assert handover.ended() is None
    assert order == ["effect", "piece"]


def test_the_fault_of_a_handover_is_its_callers_and_the_next_one_is_taken(
    device: Interrupts,
) -> None:
    def fail() -> None:
        raise ControlError("a bad file")

    with pytest.raises(ControlError, match="a bad file"):
        device.interject(fail, nobody_cares)
    assert not goes_first(device)
    done: list[str] = []
    device.interject(lambda: done.append("piece"), nobody_cares)
    assert done == ["piece"]


def test_one_handover_at_a_time(device: Interrupts) -> None:
    gate = Gate()
    first = Runner(lambda: device.interject(gate.pass_through, nobody_cares))
    assert gate.begun.wait(PATIENCE_S)
    with pytest.raises(ControlError, match="another package is being stored"):
        device.of_model().interject(nobody_cares, nobody_cares)
    assert goes_first(device), "the first one still does"
    gate.go_on.set()
    assert first.ended() is None
    device.give_way()


def test_a_handover_that_nobody_waits_for_any_more_is_never_done(device: Interrupts) -> None:
    gate, holder = holding(device)
    done: list[str] = []

    def gone() -> None:
        raise ControlError("the client has gone")

    with pytest.raises(ControlError, match="the client has gone"):
        device.interject(lambda: done.append("piece"), gone)
    assert not goes_first(device)
    gate.go_on.set()
    assert holder.ended() is None
    assert done == []


class Crowd:
    """Threads that do all of this at once, and how many of them have the turn."""

    def __init__(self, device: Interrupts) -> None:
        self.device = device
        self.models = [device.of_model() for _ in range(4)]
        self.most = 0
        self._inside = 0

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        self._inside += 1
        self.most = max(self.most, self._inside)
        try:
            CLOCK.sleep(0.0)
            yield
        finally:
            self._inside -= 1

    def install(self, number: int) -> None:
        interrupts, rng = self.models[number], random.Random(number)
        done = 0
        while done < 30:
            abandon = rng.random() < 0.7
            try:
                with interrupts.turn(abandon=abandon):
                    with self.inside():
                        interrupts.check(abandon=abandon)
                    if rng.random() < 0.3:
                        with interrupts.out_of_turn():
                            interrupts.wait(PAUSE_S, abandon=abandon)
                        with self.inside():
                            interrupts.check(abandon=abandon)
                done += 1
            except SupersededError:
                interrupts.clear_superseded()
            except InterjectedError:
                interrupts.give_way()

    def hand_over(self) -> None:
        for _ in range(30):
            try:
                self.device.interject(self._piece, nobody_cares)
            except ControlError:  # another thread does
                CLOCK.sleep(PAUSE_S)

    def supersede(self) -> None:
        rng = random.Random(7)
        for _ in range(60):
            rng.choice(self.models).supersede()
            CLOCK.sleep(PAUSE_S)

    def _piece(self) -> None:
        with self.inside():
            pass


def test_threads_that_do_all_of_this_at_once_all_come_to_their_end(device: Interrupts) -> None:
    crowd = Crowd(device)
    works: list[Callable[[], None]] = [functools.partial(crowd.install, n) for n in range(4)]
    works += [crowd.hand_over, crowd.hand_over, crowd.supersede]
    runners = [Runner(work) for work in works]
    assert [runner.ended() for runner in runners] == [None] * 7
    assert crowd.most == 1, "no two threads had the turn"
    assert not goes_first(device)
    take(device)


def test_a_stop_in_the_middle_of_all_this_ends_every_thread(device: Interrupts) -> None:
    crowd = Crowd(device)
    gate = Gate()
    handover = Runner(lambda: device.interject(gate.pass_through, nobody_cares))
    assert gate.begun.wait(PATIENCE_S)
    runners = [Runner(functools.partial(crowd.install, number)) for number in range(4)]
    device.stop()
    gate.go_on.set()
    assert handover.ended() is None
    assert [type(runner.ended()) for runner in runners] == [StoppedError] * 4
