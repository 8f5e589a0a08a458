"""The model server without processes: benches, nothing loaded, what the supervisor imports."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from agent.errors import StorageError
from agent.serve.answered import Answered, Outcome
from agent.serve.benches import BENCH_S, CRASH_WINDOW_S, LAST_REST_S, Benches
from agent.serve.errors import NotServingError
from agent.serve.frames import Reply
from agent.serve.model_server import ModelServer
from agent.serve.routes import InferenceCall
from tests.simulators.clock import FakeClock
from tests.simulators.packages import variant
from wire.errors import WireFormatError

SUPERVISOR_MODULES = (
    *("answered", "errors", "frames", "model_server", "pool", "router", "scheduler", "settings"),
    *("channel", "spawning", "worker_life", "worker_process", "worker_talk", "http.endpoint"),
)


class Measured:
    """Keeps what was measured."""

    def __init__(self) -> None:
        self.figures: list[tuple[str, float, Mapping[str, str]]] = []

    def observe(self, metric: str, value: float, attributes: Mapping[str, str]) -> None:
        self.figures.append((metric, value, attributes))

    def add(self, metric: str, amount: float, attributes: Mapping[str, str]) -> None:
        self.figures.append((metric, amount, attributes))

    def request(
        self,
        attributes: Mapping[str, str],
        added: Iterable[tuple[str, float]],
        observed: Iterable[tuple[str, float]] = (),
    ) -> None:
        self.figures += [(name, value, dict(attributes)) for name, value in (*added, *observed)]

    def event(self, kind: str, reason: str, data: Mapping[str, Any]) -> None:
        raise AssertionError((kind, reason, data))


@pytest.mark.parametrize("module", SUPERVISOR_MODULES)
def test_the_supervisor_imports_neither_numpy_nor_a_runtime(module: str) -> None:
    program = f"import json, sys, agent.serve.{module}; print(json.dumps(sorted(sys.modules)))"
    command = [sys.executable, "-P", "-c", program]
    loaded = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    assert f"agent.serve.{module}" in loaded
    roots = {name.partition(".")[0] for name in loaded}
    assert not roots & {"numpy", "runtime_adapters", "onnxruntime", "openvino", "packager"}


def test_three_crashes_in_a_minute_bench_a_variant_for_five() -> None:
    clock = FakeClock()
    benches = Benches(clock)
    assert not benches.crashed("d1", "a", "first")
    assert not benches.crashed("d1", "a", "second")
    assert benches.of("d1") == {}
    assert benches.crashed("d1", "a", "third")
    assert benches.of("d1") == {"a": "third"}
    assert benches.of("d2") == {}
    clock.advance(BENCH_S - 1)
    assert benches.of("d1") == {"a": "third"}
    clock.advance(1)
    assert benches.of("d1") == {}
    assert not benches.crashed("d1", "a", "counted anew")


def test_of_variants_that_all_rest_the_first_is_tried_again_soon() -> None:
    clock = FakeClock()
    benches = Benches(clock)
    for name in ("b", "a"):
        benches.rest("d1", name, "no memory")
        benches.spare("d1", ["a", "b"])
        assert name in benches.of("d1")
        clock.advance(1)
    benches.rest("d0", "c", "of another package")
    clock.advance(LAST_REST_S - 2.5)
    benches.spare("d1", ["a", "b"])
    assert set(benches.of("d1")) == {"a", "b"}
    clock.advance(0.5)
    benches.spare("d1", ["a", "b", "c"])
    assert set(benches.of("d1")) == {"a", "b"}, "c may serve"
    benches.spare("d1", ["a", "b"])
    assert set(benches.of("d1")) == {"a"}
    clock.advance(60)
    benches.spare("d1", ["a", "b"])
    assert set(benches.of("d1")) == {"a"}, "b may serve"


def test_a_variant_that_could_not_start_rests_as_long_but_did_not_crash() -> None:
    clock = FakeClock()
    benches = Benches(clock)
    benches.rest("d1", "a", "no memory")
    assert benches.of("d1") == {"a": "no memory"}
    assert benches.of("d1", by_crashes=True) == {}
    clock.advance(BENCH_S)
    assert benches.of("d1") == {}


def test_an_install_tries_every_variant_again() -> None:
    benches = Benches(FakeClock())
    benches.rest("d1", "a", "no memory")
    benches.crashed("d1", "b", "crash")
    benches.clear()
    assert benches.of("d1") == {}
    assert not benches.crashed("d1", "b", "first")
    assert not benches.crashed("d1", "b", "second")


def test_crashes_that_are_far_apart_bench_nothing() -> None:
    clock = FakeClock()
    benches = Benches(clock)
    for _ in range(10):
        assert not benches.crashed("d1", "a", "crash")
        clock.advance(CRASH_WINDOW_S / 2)


def test_what_is_activated_starts_anew_and_old_packages_are_forgotten() -> None:
    benches = Benches(FakeClock())
    for digest, name in (("d1", "a"), ("d1", "b"), ("d0", "a")):
        for _ in range(3):
            benches.crashed(digest, name, "crash")
    benches.forgive("d1", "a")
    assert benches.of("d1") == {"b": "crash"}
    assert benches.of("d0") == {}


def call() -> InferenceCall:
    return InferenceCall(model="digits", version=None, header_length=None, body=memoryview(b""))


def test_nothing_loaded_is_not_now() -> None:
    measured = Measured()
    server, heard = ModelServer(measured, FakeClock()), list[Answered]()
    server.router.listen(heard.append)
    reply = server.router.handle(call())
    assert isinstance(reply, Reply)
    assert reply.status == 503
    assert reply.headers["Retry-After"] == "1"
    assert server.active is None
    assert not server.router.is_ready
    assert [name for name, _, _ in measured.figures] == [
        "inference_requests_total",
        "inference_refusals_total",
        "inference_failures_total",
    ]
    (answered,) = heard
    assert (answered.outcome, answered.code) == (Outcome.REFUSED, "agent.serving")
    assert (answered.asked_model, answered.variant, answered.active) == ("digits", "none", None)
    server.supervise()
    server.withdraw()
    with pytest.raises(NotServingError):
        server.probe_active()


def test_a_package_without_a_manifest_is_not_started(tmp_path: Path) -> None:
    server = ModelServer(Measured(), FakeClock())
    with pytest.raises(StorageError):
        server.prepare(tmp_path, "d" * 64, variant("a"))
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(WireFormatError):
        server.prepare(tmp_path, "d" * 64, variant("a"))
