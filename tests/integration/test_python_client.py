"""The Python client against a controller that listens: its page, its lists, and completion."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from controller.app.service import Controller
from controller.cli import completion
from controller.client import Fleet, UnreachableError
from controller.client.errors import ArgumentError, FaultError, RateError
from controller.client.listing import Listing
from controller.client.target import Target
from controller.enrolment_schemas import TokenRequest
from controller.group_schemas import GroupRequest
from controller.rehearsal_schemas import RehearsalRequest
from controller.rollout_schemas import RolloutRequest
from tests.simulators.clock import FakeClock
from tests.simulators.controller_fleet import API_TOKEN, MemoryAccess, names
from tests.simulators.controller_fleet import Fleet as SimulatedFleet
from tests.simulators.packages import two_variants
from tests.simulators.raw_server import RawServer
from tests.simulators.transport import MemoryHub

PAGE = Path(__file__).parents[2] / "docs" / "client.md"


class Served(NamedTuple):
    """A controller that listens, and what is in it."""

    url: str
    token_file: Path
    rollout: str

    def connect(self) -> Fleet:
        return Fleet.connect(self.url, token_file=self.token_file)

    def run(self, example: str) -> None:
        """Run what the page shows, with this controller."""
        code = example.replace("https://fleet.example:8470", self.url)
        exec(code.replace('"ci.token"', repr(str(self.token_file))), {})  # noqa: S102 - our page


@pytest.fixture
def served(database_url: str, tmp_path: Path) -> Iterator[Served]:
    made = SimulatedFleet(database_url, tmp_path)
    made.enrol("cam-1", "cam-2", site="berlin")
    made.enrol("cam-3")
    made.enrol(*names("ham", 12), site="hamburg")
    for version in ("1", "2", "3"):
        made.publish(two_variants(version))
    for name in ("ann", "kim"):
        made.token(name, "viewer")
    rollout = made.roll_out("digits:1", selector="site=berlin")
    made.run(rollout)
    made.roll_out("digits:2", selector="id=cam-3")
    made.close()
    transport = MemoryHub().connect()
    controller = Controller(made.config, MemoryAccess(), connect=lambda: transport)
    controller.start()
    token_file = tmp_path / "ci.token"
    token_file.write_text(API_TOKEN)
    yield Served(f"http://127.0.0.1:{controller.api_address[1]}", token_file, rollout)
    controller.stop()


def test_the_example_of_the_page_works(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    served.run(examples()[0])
    lines = capsys.readouterr().out.splitlines()
    assert sorted(line.split()[0] for line in lines[:2]) == ["cam-1", "cam-2"]
    assert lines[-1].startswith("controller.unknown.release ")


def examples() -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def test_the_page_plans_makes_and_watches_a_rollout(
    served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    _, example = examples()
    assert "time.sleep(10)" in example
    served.run(example.replace("time.sleep(10)", "fleet.rollouts.abort(rollout.id)"))
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [
        "stage 1 starts 1, asks gates: False",
        "stage 2 starts 5, asks gates: True",
        "stage 3 starts 1, asks gates: True",
    ]
    assert lines[3].startswith("aborted ")
    with served.connect() as fleet:
        rollout = next(iter(fleet.rollouts.list()))
        assert (rollout.release, rollout.selector) == ("digits:2", "site=hamburg")
        assert [stage.soak_s for stage in rollout.stages] == [600.0] * 3


def test_a_request_in_other_words_is_refused_before_it_is_sent(served: Served) -> None:
    with served.connect() as fleet:
        words: Any = [1, "100%"]
        request = RolloutRequest(release="digits:2", stages=words)
        for ask in (fleet.rollouts.plan, fleet.rollouts.create):
            with pytest.raises(ArgumentError, match=r"stages\[0\] is 1, no Stage") as caught:
                ask(request)
            assert "rollout_request" in caught.value.remedy
        with pytest.raises(ArgumentError, match="stages"):
            fleet.rollouts.rehearse(RehearsalRequest(rollout=request))


def test_two_releases_are_compared_in_the_words_of_a_query(served: Served) -> None:
    with (
        served.connect() as fleet,
        pytest.raises(FaultError, match=r"no values with release=digits:1"),
    ):
        fleet.telemetry.compare(
            "inference_latency_ms",
            "digits:1",
            "digits:2",
            stat="p95",
            where=["variant=a"],
            since="1d",
        )


def test_lists_come_whole_in_every_order_one_by_one(served: Served) -> None:
    with served.connect() as fleet:
        fleet.tokens.create(TokenRequest())
        lists: dict[Any, tuple[str, ...]] = {
            fleet.access: ("name", "created", "expires", "used"),
            fleet.devices: ("id", "enrolled", "profile", "seen", "state"),
            fleet.releases: ("published", "name", "size"),
            fleet.rollouts: ("created", "finished", "id", "model", "state"),
            fleet.tokens: ("created", "expires", "id"),
        }
        for resource, sorts in lists.items():
            for sort in sorts:
                listing: Listing[Any] = resource.list(sort=sort)
                whole = [name_of(thing) for thing in listing]
                assert len(set(whole)) == len(whole) > 1
                assert one_by_one(listing) == whole
                assert one_by_one(resource.list(sort=sort, reverse=True)) == whole[::-1]
        rows = one_by_one(fleet.audit.list())
        assert rows == list(range(len(rows), 0, -1))
        assert [r.id for r in fleet.rollouts.list(state="succeeded")] == [served.rollout]
        assert [r.id for r in fleet.rollouts.list(release="digits:1")] == [served.rollout]
        with pytest.raises(FaultError, match="cursor: it is not one that this list gave") as caught:
            fleet.devices.list().page(limit=1, cursor="nonsense")
        assert caught.value.status == 422


def one_by_one(listing: Listing[Any]) -> list[Any]:
    found, cursor = listing.page(limit=1)
    while cursor:
        part, cursor = listing.page(limit=1, cursor=cursor)
        found += part
    return [name_of(thing) for thing in found]


def name_of(thing: Any) -> Any:
    names = ("sequence", "digest", "id", "name")
    return next(getattr(thing, name) for name in names if hasattr(thing, name))


def test_names_are_completed_from_the_controller_of_the_line(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served.connect() as fleet:
        fleet.groups.set("cameras", GroupRequest(selector="cpu_count>=1"))
    line = f"fleet device show cam --url {served.url} --token-file {served.token_file}"
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setattr(completion, "TIMEOUT_S", 10.0)  # of a busy machine
    assert completion.devices("cam-") == ["cam-1", "cam-2", "cam-3"]
    assert completion.devices("' or") == []
    assert served.rollout in completion.rollouts("r")
    assert sorted(completion.releases("digits:")) == ["digits:1", "digits:2", "digits:3"]
    assert completion.models("") == ["digits"]
    assert completion.selectors("group:") == ["group:cameras"]
    assert completion.metrics("") == []
    assert completion.api_tokens("") == ["ann", "kim"]
    monkeypatch.setenv("COMP_WORDS", line.replace(served.url, "http://127.0.0.1:1"))
    assert completion.devices("cam-") == []


def test_only_what_is_safe_is_sent_again() -> None:
    fault = b'{"code": "c", "message": "m"}'
    busy = b"HTTP/1.1 429 Too Many\r\nRetry-After: 1\r\nContent-Length: %d\r\n\r\n%b" % (
        len(fault), fault,
    )  # fmt: skip
    done = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nnull"
    answers: list[bytes] = []

    def answer(sock: socket.socket, _request: bytes) -> bool:
        given = answers.pop(0)
        sock.sendall(given)
        return bool(given)

    server = RawServer(answer)
    with server.running():
        target, clock = Target(url=server.url(""), token="t" * 32), FakeClock()
        with Fleet(target, clock=clock, patience_s=2.0) as fleet:
            answers[:] = [b"", done]
            fleet.get("/v1/devices", object)
            answers[:] = [busy, done]
            fleet.send("POST", "/v1/rollouts", object)
            answers[:] = [b"", done]
            with pytest.raises(UnreachableError):
                fleet.send("POST", "/v1/rollouts", object)
            answers[:] = [busy] * 9
            with pytest.raises(RateError) as caught:
                fleet.get("/v1/devices", object)
        assert caught.value.retry_after_s == 1.0
        assert len(server.requests) == 7  # it waits one second, and two more are too many
