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
from controller.client.errors import FaultError, RateError
from controller.client.listing import Listing
from controller.client.target import Target
from controller.enrolment_schemas import TokenRequest
from tests.simulators.clock import FakeClock
from tests.simulators.controller_fleet import API_TOKEN, MemoryAccess
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


@pytest.fixture
def served(database_url: str, tmp_path: Path) -> Iterator[Served]:
    made = SimulatedFleet(database_url, tmp_path)
    made.enrol("cam-1", "cam-2", site="berlin")
    made.enrol("cam-3")
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
    example = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert example is not None
    code = example[1].replace("https://fleet.example:8470", served.url)
    exec(code.replace('"ci.token"', repr(str(served.token_file))), {})  # noqa: S102 - our page
    lines = capsys.readouterr().out.splitlines()
    assert sorted(line.split()[0] for line in lines[:2]) == ["cam-1", "cam-2"]
    assert lines[-1].startswith("controller.unknown.release ")


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
    line = f"fleet device show cam --url {served.url} --token-file {served.token_file}"
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setattr(completion, "TIMEOUT_S", 10.0)  # of a busy machine
    assert completion.devices("cam-") == ["cam-1", "cam-2", "cam-3"]
    assert completion.devices("' or") == []
    assert served.rollout in completion.rollouts("r")
    assert sorted(completion.releases("digits:")) == ["digits:1", "digits:2", "digits:3"]
    assert completion.models("") == ["digits"]
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
