"""A variant in several workers at once: requests are spread, and no worker's end loses one."""

from __future__ import annotations

import http.client
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from agent.errors import StorageError
from agent.package_files import SignedFile
from agent.ports import Running
from agent.serve.routes import Route
from agent.serve.served import ServedModels
from agent.serve.settings import ServingSettings, WorkerLimits
from tests.simulators.crowd import Crowd
from tests.simulators.packages import package, variant
from tests.simulators.patience import PATIENCE_S, finished, until
from tests.simulators.rig import CLOCK, DIGEST, SEEDS, Rig, infer
from wire.errors import FleetError
from wire.package.variant import Variant

DAMAGED = "the file is not what was signed"
FIRST = variant("first", options={"delay_ms": "20"})


class Workers(Rig):
    """A rig whose policy asks for some number of workers."""

    def __init__(self, directory: Path) -> None:
        self.asked, self.damaged, self.verified = 1, False, 0
        limits = WorkerLimits(threads=2)
        settings = ServingSettings(limits=limits, processors=4, gap_wait_s=PATIENCE_S)
        super().__init__(directory, settings=settings, signed=self)
        self.use(FIRST)

    def of(self, _digest: str, _variant: Variant) -> Sequence[SignedFile]:
        """Return what was signed of the files: as a port of the model server."""
        self.verified += 1
        if self.damaged:
            raise StorageError(DAMAGED)
        return ()

    def check(self, _digest: str, _variant: Variant) -> None:
        """Nothing ends first here."""

    def note(self, _digest: str, _variant: Variant, _fault: FleetError) -> None:
        """Nothing repairs here."""

    def tick(self) -> None:
        """Do what the agent does each second."""
        self.server.run_requests(Running(joins=False, workers=self.asked))
        self.server.supervise()

    def ask_for(self, workers: int) -> None:
        """Ask for workers, and let the agent do it."""
        self.asked = workers
        self.tick()
        until(self.settles, "the workers")

    def settles(self) -> bool:
        self.tick()
        return self.server.is_settled

    def kill_last(self) -> None:
        """End the worker that came last, while it has no request."""
        worker = self.route.lanes[-1].target.worker
        os.kill(worker.pid, signal.SIGKILL)
        until(lambda: not worker.is_alive, "the end of a worker")

    def ask(self) -> tuple[int, str]:
        """Ask once; return the status, and the variant or the error."""
        client = self.client()
        status, text, _ = infer(client)
        client.close()
        return status, text

    @property
    def route(self) -> Route:
        route = self.server.router.routes.route
        assert route is not None
        return route

    @property
    def pids(self) -> list[int]:
        return [lane.target.worker.pid for lane in self.route.lanes]

    def threads(self) -> list[int]:
        return [lane.target.worker.threads for lane in self.route.lanes]

    def reasons(self) -> list[str]:
        _, events = self.recorder.drain()
        return [event.reason for event in events if event.kind == "worker"]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Workers]:
    rig = Workers(tmp_path)
    yield rig
    rig.stop()


def is_gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def test_requests_that_come_together_run_in_different_workers(rig: Workers) -> None:
    rig.use(variant("second", options={"delay_ms": "1500"}))
    rig.ask_for(3)
    assert len(set(rig.pids)) == 3
    statuses: list[int] = []

    def ask() -> None:
        client = http.client.HTTPConnection("127.0.0.1", rig.port, timeout=PATIENCE_S)
        statuses.append(infer(client)[0])
        client.close()

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    until(lambda: [lane.in_flight for lane in rig.route.lanes] == [1, 1, 1], "a request in each")
    for thread in threads:
        finished(thread)
    assert statuses == [200, 200, 200]
    assert rig.server.router.is_idle
    assert rig.server.router.in_flight == 0


def test_workers_come_and_go_under_load_and_no_request_is_lost(rig: Workers) -> None:
    with Crowd(rig.port, {"first": rig.expected("first")}) as clients:
        clients.wait_for(8)
        for count in (4, 2, 3, 1):
            rig.ask_for(count)
            assert rig.server.router.workers == count
            clients.wait_for(8)
    assert clients.faults == []


def test_workers_share_the_processors(rig: Workers) -> None:
    assert rig.threads() == [2]
    first = rig.pids
    rig.ask_for(2)
    assert (rig.threads(), rig.pids[:1]) == ([2, 2], first), "there are enough for two each"
    rig.ask_for(9)
    assert rig.threads() == [1, 1, 1, 1], "no more workers than processors"
    assert rig.server.most_workers(9) == 4
    rig.ask_for(1)
    assert rig.threads() == [2]


@pytest.mark.parametrize("place", [0, 1])
def test_the_others_go_on_when_one_worker_ends(rig: Workers, place: int) -> None:
    rig.ask_for(2)
    killed = rig.pids[place]
    other = rig.pids[1 - place]
    with Crowd(rig.port, {"first": rig.expected("first")}) as clients:
        clients.wait_for(8)
        os.kill(killed, signal.SIGKILL)
        until(lambda: rig.pids == [other], "the dead one to be taken away")
        clients.wait_for(8)
        until(rig.settles, "another worker")
        assert len(rig.pids) == 2
        clients.wait_for(8)
    assert clients.faults == []
    assert "the worker was ended by SIGKILL" in rig.reasons()


def test_one_that_died_without_a_request_is_replaced(rig: Workers) -> None:
    rig.ask_for(2)
    rig.kill_last()
    until(rig.settles, "another worker")
    assert len(rig.pids) == 2
    assert all(lane.target.worker.is_alive for lane in rig.route.lanes)


def test_workers_that_died_while_they_were_idle_are_no_fault_of_the_next_request(
    rig: Workers,
) -> None:
    rig.ask_for(4)
    for lane in rig.route.lanes[:3]:
        os.kill(lane.target.worker.pid, signal.SIGKILL)
    for lane in rig.route.lanes[:3]:
        until(lambda lane=lane: not lane.target.worker.is_alive, "its end")  # type: ignore[misc]
    assert rig.ask() == (200, "first")


def test_what_cannot_start_a_further_worker_serves_with_those_that_there_are(rig: Workers) -> None:
    rig.damaged, rig.verified = True, 0
    rig.ask_for(3)
    assert (rig.server.router.workers, rig.server.most_workers(3)) == (1, 1)
    assert rig.verified == 1, "it is not tried again and again"
    (reason,) = rig.reasons()
    assert reason == f"no further worker could start, so 1 of 3 serve: {DAMAGED}"
    assert rig.ask() == (200, "first")
    rig.damaged = False
    rig.ask_for(2)  # another policy
    assert rig.server.router.workers == 2


def test_the_least_busy_worker_ends_when_fewer_are_asked_for(rig: Workers) -> None:
    rig.ask_for(4)
    held = [rig.server.router.routes.enter() for _ in range(4)]
    for place in held[:3]:
        rig.server.router.routes.leave(place)
    busy = held[3].lane.target.worker.pid
    rig.ask_for(3)
    assert busy in rig.pids
    rig.server.router.routes.leave(held[3])


def test_crashes_of_all_workers_count_and_what_is_left_serves(rig: Workers) -> None:
    rig.ask_for(2)
    for crashes in range(3):
        assert rig.server.benches.of(DIGEST) == {}, crashes
        rig.kill_last()
        until(rig.settles, "another worker")
    assert rig.server.benches.of(DIGEST).keys() == {"first"}
    rig.tick()
    assert len(rig.pids) == 1, "a variant that rests gets no worker"
    assert rig.ask() == (200, "first")


def test_the_memory_of_all_workers_counts(rig: Workers) -> None:
    alone = rig.server.held_bytes
    assert alone > 0
    rig.ask_for(2)
    assert rig.server.held_bytes > 1.5 * alone


def test_a_device_with_a_request_in_any_worker_is_not_idle(rig: Workers) -> None:
    models = ServedModels(CLOCK)
    models.add("digits", rig.server.router)
    rig.use(variant("second", options={"delay_ms": "1500"}))
    rig.ask_for(2)
    assert models.is_idle
    with rig.server.router.routes.entered():  # it holds the first worker, and has no turn there
        asking = threading.Thread(target=rig.ask)
        asking.start()
        until(lambda: rig.route.lanes[1].in_flight == 1, "a request in the second worker")
        until(lambda: not models.is_idle, "its turn")
    finished(asking)
    assert models.is_idle


def test_all_workers_end_with_the_server(rig: Workers) -> None:
    rig.ask_for(3)
    pids = rig.pids
    rig.stop()
    assert all(map(is_gone, pids))


def test_a_switch_brings_one_worker_and_then_the_others(rig: Workers) -> None:
    rig.ask_for(2)
    old = rig.pids
    second = variant("second")
    package("1.0", [(second, SEEDS["second"])]).write_to(rig.directory)
    rig.use(second)
    assert len(rig.pids) == 1
    assert all(map(is_gone, old))
    until(rig.settles, "another worker")
    assert len(rig.pids) == 2
