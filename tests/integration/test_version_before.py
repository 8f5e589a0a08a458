"""The version before, which stays loaded beside a new one where the policy asks for it."""

from __future__ import annotations

import http.client
import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.ports import Running
from agent.select.meter import Meter
from tests.simulators.packages import package, variant
from tests.simulators.patience import finished, until
from tests.simulators.rig import CLOCK, SEEDS, Rig, body_of
from wire.package.variant import Variant

OLD, NEW = "1.0", "2.0"
MODEL = "/v2/models/digits"


class Versions(Rig):
    """A rig that serves one version after another."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.keeps = True
        self.meter = Meter(CLOCK)
        self.server.router.greet(self.meter.came)
        self.server.router.listen(self.meter.count)
        self.connection = self.client()

    def tick(self) -> None:
        """Do what the agent does each second."""
        self.server.run_requests(Running(keeps_previous=self.keeps))
        self.server.supervise()

    def bring(
        self, version: str, *, stop_first: bool = False, chosen: Variant | None = None
    ) -> None:
        """Put a version into service."""
        chosen = chosen or variant("first")
        signed = package(version, [(chosen, SEEDS["first"])])
        place = self.directory / version
        signed.write_to(place)
        self.server.switch_to(place, signed.digest, chosen, stop_first=stop_first)

    def ask(
        self, path: str = "/infer", client: http.client.HTTPConnection | None = None
    ) -> tuple[int, str]:
        """Ask for an inference; return the status, and the release or the error."""
        client = client or self.connection
        body, headers = body_of()
        client.request("POST", f"{MODEL}{path}", body=body, headers=headers)
        response = client.getresponse()
        content = response.read()
        if response.status != 200:
            return response.status, json.loads(content)["error"]
        length = int(response.headers["Inference-Header-Content-Length"])
        return 200, json.loads(content[:length])["parameters"]["release"]

    def ask_for(
        self, version: str, client: http.client.HTTPConnection | None = None
    ) -> tuple[int, str]:
        return self.ask(f"/versions/{version}/infer", client)

    def read(self, path: str, method: str = "GET") -> Any:
        self.connection.request(method, path, headers={"Content-Length": "0"})
        return json.loads(self.connection.getresponse().read())

    @property
    def kept_pid(self) -> int:
        kept = self.server.router.kept
        assert kept is not None
        return kept.worker.pid


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Versions]:
    rig = Versions(tmp_path)
    rig.tick()
    rig.bring(OLD)
    yield rig
    rig.connection.close()
    rig.stop()


def is_gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def test_both_versions_answer_requests_that_name_them(rig: Versions) -> None:
    before = rig.pid
    rig.bring(NEW)
    assert rig.ask() == (200, "digits:2.0")
    assert rig.ask_for(NEW) == (200, "digits:2.0")
    assert rig.ask_for(OLD) == (200, "digits:1.0")
    assert rig.kept_pid == before
    assert rig.ask_for("3.0")[0] == 404


def test_what_is_known_of_the_model_names_both_versions(rig: Versions) -> None:
    rig.bring(NEW)
    rig.ask()
    rig.ask_for(OLD)
    rig.ask_for(OLD)
    assert rig.read(MODEL)["versions"] == [NEW, OLD]
    assert rig.read(f"{MODEL}/versions/{OLD}/ready")["ready"] is True
    index = rig.read("/v2/repository/index", "POST")
    assert [(row["version"], row["state"]) for row in index] == [(NEW, "READY"), (OLD, "READY")]
    counts = {
        version: rig.read(f"{MODEL}/versions/{version}/stats")["model_stats"][0]["inference_count"]
        for version in (OLD, NEW)
    }
    assert counts == {OLD: 2, NEW: 1}
    assert len(rig.read("/v2/models/stats")["model_stats"]) == 2


def test_what_it_answers_is_no_demand_on_the_one_that_serves(rig: Versions) -> None:
    rig.bring(NEW)
    rig.meter.take()
    rig.ask()
    rig.ask_for(OLD)
    rig.ask_for(OLD)
    served, _ = rig.meter.take()
    assert (served.requests, served.answered) == (1.0, 1.0)


def test_its_requests_are_recorded_under_its_own_release(rig: Versions) -> None:
    rig.bring(NEW)
    rig.recorder.drain()
    rig.ask_for(OLD)
    points, _ = rig.recorder.drain()
    assert {point.attributes["release"] for point in points} == {"digits:1.0"}


def test_a_way_back_to_it_needs_no_new_worker(rig: Versions) -> None:
    before = rig.pid
    rig.bring(NEW)
    newer = rig.pid
    rig.bring(OLD)
    assert rig.pid == before
    assert rig.ask() == (200, "digits:1.0")
    assert is_gone(newer), "it was left for a reason"
    assert rig.ask_for(NEW)[0] == 404


def test_a_way_back_to_another_variant_of_it_leaves_one_of_that_version(rig: Versions) -> None:
    before = rig.pid
    rig.bring(NEW)
    rig.bring(OLD, chosen=variant("second"))
    assert is_gone(before)
    assert rig.server.router.kept is None
    assert rig.ask_for(OLD) == (200, "digits:1.0")


def test_a_client_that_names_a_loaded_version_is_answered_through_every_switch(
    rig: Versions,
) -> None:
    rig.bring(NEW)
    stopping, answers = threading.Event(), list[tuple[int, str]]()

    def ask() -> None:
        client = rig.client()
        while not stopping.is_set():
            answers.append(rig.ask_for(OLD, client))
        client.close()

    asking = threading.Thread(target=ask)
    asking.start()
    for _ in range(4):
        rig.bring(OLD)
        rig.bring(NEW)
    stopping.set()
    finished(asking)
    assert answers
    assert set(answers) == {(200, "digits:1.0")}


def test_requests_of_before_a_way_back_are_answered_before_their_worker_ends(
    rig: Versions,
) -> None:
    rig.bring("1.5", chosen=variant("first", options={"delay_ms": "800"}))
    rig.bring(NEW)
    answers: list[tuple[int, str]] = []
    client = rig.client()
    asking = threading.Thread(target=lambda: answers.append(rig.ask_for("1.5", client)))
    asking.start()
    until(lambda: rig.server.router.in_flight == 1, "the request")
    rig.bring("1.5", chosen=variant("first", options={"delay_ms": "800"}))
    assert rig.server.router.in_flight == 1
    rig.server.withdraw("unloaded")
    finished(asking)
    client.close()
    assert answers == [(200, "digits:1.5")]


def test_it_goes_on_when_nothing_of_the_new_version_can_serve(rig: Versions) -> None:
    rig.bring(NEW)
    rig.server.withdraw("nothing can serve", keeps_previous=True)
    assert rig.ask() == (503, "nothing can serve")
    assert rig.ask_for(OLD) == (200, "digits:1.0")


def test_it_ends_with_the_files_of_its_package(rig: Versions) -> None:
    before = rig.server.active
    assert before is not None
    rig.bring(NEW)
    rig.server.keep_only({before.digest})
    assert rig.ask_for(OLD) == (200, "digits:1.0")
    rig.server.keep_only({None})
    assert is_gone(before.worker.pid)
    assert rig.ask_for(OLD)[0] == 404


def test_it_gets_no_further_workers(rig: Versions) -> None:
    serving = rig.server.router.routes.route
    assert serving is not None
    rig.bring(NEW)
    assert not rig.server.router.routes.add(serving, serving.target)
    assert len(serving.lanes) == 1


@pytest.mark.parametrize("how", ["little memory", "another release", "unload", "no room", "stop"])
def test_it_ends_when_it_has_to(rig: Versions, how: str) -> None:
    before = rig.pid
    rig.bring(NEW)
    if how == "little memory":
        rig.keeps = False
        rig.tick()
        until(lambda: rig.server.is_settled, "its end")
        assert rig.ask_for(OLD)[0] == 404
    elif how == "another release":
        rig.bring("3.0")
        assert rig.ask_for(NEW) == (200, "digits:2.0")
    elif how == "unload":
        rig.server.withdraw("unloaded")
    elif how == "no room":
        rig.bring("3.0", stop_first=True)
    else:
        rig.server.stop()
    assert is_gone(before)


def test_it_is_not_kept_where_the_policy_does_not_ask(rig: Versions) -> None:
    rig.keeps = False
    rig.tick()
    before = rig.pid
    rig.bring(NEW)
    assert is_gone(before)
    assert rig.ask_for(OLD)[0] == 404


def test_the_same_version_in_another_package_is_no_version_before(rig: Versions) -> None:
    before = rig.pid
    rig.bring(OLD, chosen=variant("second"))
    assert is_gone(before)


def test_it_is_replaced_when_its_worker_dies(rig: Versions) -> None:
    rig.bring(NEW)
    serving, before = rig.pid, rig.kept_pid
    os.kill(before, signal.SIGKILL)
    until(lambda: is_gone(before) or rig.ask_for(OLD), "the end of it")
    assert rig.ask_for(OLD) == (200, "digits:1.0")
    assert (rig.pid, rig.ask()) == (serving, (200, "digits:2.0"))


def test_it_goes_when_it_crashes_too_often(rig: Versions) -> None:
    rig.bring("1.5", chosen=variant("first", options={"fail": "crash", "fail_after": "1"}))
    rig.bring(NEW)
    statuses = [rig.ask_for("1.5")[0] for _ in range(9)]
    assert statuses[-1] == 404, statuses
    assert rig.server.router.kept is None
    assert rig.ask() == (200, "digits:2.0")
