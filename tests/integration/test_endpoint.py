"""The endpoint with real workers behind it: clients see no switch, no crash and no hang."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.packages import Damage, SignedFiles, open_package
from agent.serve.errors import NotServingError, WorkerCrashedError
from agent.serve.model_server import ModelServer
from agent.serve.settings import ServingSettings
from telemetry.device.recorder import Recorder
from tests.simulators.crowd import Crowd
from tests.simulators.packages import TRUST, package, variant
from tests.simulators.patience import until
from tests.simulators.rig import CLOCK, DIGEST, NAMES, SEEDS, Rig, infer
from wire.errors import IntegrityError
from wire.package.index import FileEntry
from wire.package.variant import Variant
from wire.telemetry import Event, Point, SumPoint

IMPATIENT = ServingSettings(infer_timeout_s=1.0, gap_wait_s=0.2)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path)
    yield rig
    rig.stop()


@pytest.fixture
def impatient(tmp_path: Path) -> Iterator[Rig]:
    """Return a rig whose requests hardly wait for another variant, because nobody brings one."""
    rig = Rig(tmp_path, settings=IMPATIENT)
    yield rig
    rig.stop()


def crowd(rig: Rig) -> Crowd:
    for name in NAMES:
        package("1.0", [(variant(name), SEEDS[name])]).write_to(rig.directory)
    return Crowd(rig.port, {name: rig.expected(name) for name in NAMES})


def drained(rig: Rig) -> tuple[tuple[Point, ...], tuple[Event, ...]]:
    return rig.recorder.drain()


def total(points: tuple[Point, ...], metric: str) -> float:
    return sum(p.value for p in points if isinstance(p, SumPoint) and p.metric == metric)


def test_switches_under_load_lose_nothing_and_mix_nothing(rig: Rig) -> None:
    clients = crowd(rig)
    rig.use(variant("first"))
    pids = set()
    with clients:
        for turn in range(21):
            rig.use(variant(NAMES[turn % 3], options={"delay_ms": "2"}))
            pids.add(rig.pid)
            clients.wait_for(8)
    assert clients.faults == []
    assert set(clients.answers) == set(NAMES)
    assert len(pids) == 21
    assert [pid for pid in pids if pid != rig.pid and Path(f"/proc/{pid}").exists()] == []
    points, _ = drained(rig)
    assert total(points, "inference_requests_total") == clients.answers.total()
    assert total(points, "inference_failures_total") == 0


def test_crashes_under_load_are_not_seen(rig: Rig) -> None:
    clients = crowd(rig)
    rig.use(variant("first", options={"delay_ms": "2"}))
    with clients:
        for _ in range(2):
            clients.wait_for(20)
            os.kill(rig.pid, signal.SIGKILL)
            clients.wait_for(20)
    assert clients.faults == []
    points, events = drained(rig)
    assert [event.kind for event in events] == ["worker", "worker"]
    assert total(points, "worker_crashes_total") == 2
    assert "SIGKILL" in events[0].reason
    assert events[0].data == {"variant": "first", "release": "digits:1.0"}


def test_a_hang_under_load_is_not_seen(rig: Rig) -> None:
    clients = crowd(rig)
    rig.use(variant("second"))
    with clients:
        clients.wait_for(20)
        os.kill(rig.pid, signal.SIGSTOP)
        clients.wait_for(20)
    assert clients.faults == []


def test_a_variant_that_keeps_crashing_is_benched(impatient: Rig) -> None:
    impatient.use(variant("first", options={"fail": "crash", "fail_after": "1"}))
    client = impatient.client()
    assert infer(client)[0] == 503
    assert infer(client)[0] == 503
    assert set(impatient.server.benches.of(DIGEST)) == {"first"}
    assert not impatient.server.router.is_ready
    impatient.server.supervise()
    assert infer(client)[0] == 503
    impatient.use(variant("second"))
    assert infer(client)[:2] == (200, "second")
    assert set(impatient.server.benches.of(DIGEST)) == {"first"}
    client.close()
    _, events = drained(impatient)
    assert any("benched" in event.reason for event in events)


def test_a_variant_that_is_slower_than_its_bound_is_benched(impatient: Rig) -> None:
    impatient.use(variant("first", options={"fail": "hang", "fail_after": "1"}))
    client = impatient.client()
    assert infer(client)[0] == 503
    pid = impatient.pid
    assert infer(client)[0] == 503
    assert impatient.server.benches.of(DIGEST) == {"first": "no answer from the worker in 1 s"}
    assert not Path(f"/proc/{pid}").exists()
    client.close()
    _, events = drained(impatient)
    reasons = [event.reason for event in events]
    assert reasons.count("no answer from the worker in 1 s") == 3
    assert reasons[-1] == "variant first is benched: no answer from the worker in 1 s"


def test_requests_that_were_together_when_a_worker_died_are_all_answered(rig: Rig) -> None:
    clients = crowd(rig)
    rig.use(variant("first", options={"delay_ms": "30"}))
    with clients:
        for how in (signal.SIGKILL, signal.SIGSTOP):
            clients.wait_for(20)
            os.kill(rig.pid, how)
            clients.wait_for(20)
    assert clients.faults == []
    _, events = drained(rig)
    assert len(events) == 2  # one for each worker, however many requests met its end


def test_a_worker_that_died_while_idle_is_replaced(rig: Rig) -> None:
    rig.use(variant("first"))
    dead = rig.pid
    os.kill(dead, signal.SIGKILL)

    def replaced() -> bool:
        rig.server.supervise()
        return rig.pid != dead

    until(replaced, "another worker")
    assert rig.server.router.is_ready


FIRST = variant("first")
SIGNED = package("1.0", [(FIRST, SEEDS["first"])])


@pytest.fixture
def careful(tmp_path: Path) -> Iterator[tuple[Rig, Damage]]:
    """Return a rig whose workers compare what they load with what was signed."""
    SIGNED.write_to(tmp_path)
    damage = Damage(Recorder(CLOCK))
    signed = SignedFiles(lambda digest: open_package(tmp_path, digest, TRUST), damage)
    rig = Rig(tmp_path, settings=IMPATIENT, signed=signed)
    rig.server.switch_to(tmp_path, SIGNED.digest, FIRST)
    yield rig, damage
    rig.stop()


def test_a_worker_is_not_restarted_from_changed_files(careful: tuple[Rig, Damage]) -> None:
    rig, damage = careful
    (rig.directory / "variants/first/model.json").write_bytes(b'{"seed": 7}')
    os.kill(rig.pid, signal.SIGKILL)
    client = rig.client()
    status, error, _ = infer(client)
    assert (status, rig.server.router.is_ready) == (503, False)
    assert error
    assert damage.of(SIGNED.digest) == (
        "variants/first/model.json of digits:1.0 differs from the signed file"
    )
    assert damage.variants(SIGNED.digest) == {"first"}
    client.close()


@pytest.mark.parametrize("stop_first", [False, True])
def test_what_serves_goes_on_if_the_next_worker_finds_its_files_damaged(
    careful: tuple[Rig, Damage], stop_first: bool
) -> None:
    rig, damage = careful
    pid = rig.pid
    (rig.directory / "variants/first/model.json").unlink()
    with pytest.raises(IntegrityError, match=r"model\.json"):
        rig.server.switch_to(rig.directory, SIGNED.digest, FIRST, stop_first=stop_first)
    assert rig.pid == pid
    client = rig.client()
    assert infer(client)[:2] == (200, "first")
    client.close()
    assert damage.variants(SIGNED.digest) == {"first"}


def test_a_package_that_was_removed_meanwhile_is_not_called_damaged(
    careful: tuple[Rig, Damage], tmp_path: Path
) -> None:
    rig, damage = careful
    leaving = tmp_path / "leaving"
    SIGNED.write_to(leaving)

    class Removing(SignedFiles):
        def of(self, digest: str, variant: Variant) -> tuple[FileEntry, ...]:
            shutil.rmtree(leaving)
            return super().of(digest, variant)

    server = ModelServer(
        Recorder(CLOCK),
        CLOCK,
        signed=Removing(lambda digest: open_package(rig.directory, digest, TRUST), damage),
    )
    with pytest.raises(IntegrityError):
        server.prepare(leaving, SIGNED.digest, FIRST)
    server.stop()
    assert damage.of(SIGNED.digest) is None


def test_a_prepared_worker_gets_no_requests_until_it_is_activated(rig: Rig) -> None:
    rig.use(variant("first"))
    active = rig.pid
    prepared = rig.server.prepare(rig.directory, DIGEST, variant("first"))
    assert rig.pid == active
    probed = rig.server.probe(rig.directory, DIGEST, variant("first"))
    assert not probed.passed  # it has no golden samples
    assert not rig.server.probe_active().passed
    os.kill(prepared.worker.pid, signal.SIGKILL)
    until(lambda: not prepared.worker.is_alive, "the end of the worker")
    with pytest.raises(WorkerCrashedError):
        rig.server.activate(prepared)
    rig.server.discard(prepared)
    assert rig.pid == active
    client = rig.client()
    assert infer(client)[:2] == (200, "first")
    client.close()


def test_withdrawn_and_stopped(rig: Rig) -> None:
    rig.use(variant("first"))
    idle = rig.server.prepare(rig.directory, DIGEST, variant("first"))
    rig.server.withdraw()
    client = rig.client()
    assert infer(client)[0] == 503
    client.close()
    rig.server.stop()
    assert not idle.worker.is_alive
    with pytest.raises(NotServingError):
        rig.server.prepare(rig.directory, DIGEST, variant("first"))
