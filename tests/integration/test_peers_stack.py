"""A site whose agents fetch from each other, told by a controller as users start it."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from agent.app.fetching import SMALL_BYTES
from examples.digits.box import free_port
from tests.simulators.agent_process import null_package
from tests.simulators.stack import Stack, running_stack
from tests.simulators.stack_devices import StackDevice, publish
from wire.package.index import CHUNK_BYTES
from wire.trust.envelope import SigningKey

pytestmark = [pytest.mark.thorough, pytest.mark.broker]
SETTINGS = """
[peers]
label = "site"
networks = ["127.0.0.0/8"]
"""
AGENT = """
[peers]
listen = "127.0.0.1:{port}"
[delivery]
sources = ["local", "peer", "mqtt"]
"""
PADDING_BYTES = 4 * CHUNK_BYTES

Add = Callable[[str, str], StackDevice]


@pytest.fixture
def stack() -> Iterator[Stack]:
    with running_stack(SETTINGS) as made:
        yield made


@pytest.fixture
def add(stack: Stack) -> Iterator[Add]:
    """Start an agent of a site."""
    agents: list[StackDevice] = []

    def start(name: str, site: str) -> StackDevice:
        labels = ("--label", f"site={site}", "--label", f"name={name}")
        token = stack.ok("token", "create", *labels, "--json").json["token"]
        agents.append(StackDevice(stack, name, token, AGENT.format(port=free_port())))
        agents[-1].start()
        return agents[-1]

    yield start
    for agent in agents:
        if agent.process is not None:
            agent.end(signal.SIGKILL)


class Release:
    """A release with two large files."""

    def __init__(self, stack: Stack, version: str) -> None:
        key = SigningKey(stack.release_key.read_bytes())
        made = null_package(version, padding_bytes=PADDING_BYTES, key=key)
        publish(stack, made)
        large = [entry for entry in made.index.files if entry.size_bytes >= SMALL_BYTES]
        self.large_bytes = sum(entry.size_bytes for entry in large)
        self._name = f"{made.index.name}:{version}"
        self._stack = stack

    def bring(self, selector: str) -> None:
        """Roll it out to some devices, and wait until they have it."""
        self._stack.ok("rollout", "create", self._name, "--selector", selector, "--watch")

    def large_by(self, agent: StackDevice) -> Counter[str]:
        """Return which way the large files came to an agent."""
        ways = agent.bytes_by_source(self._name)
        # All small files together have less than a chunk, and the large ones whole chunks.
        chunks = Counter({source: size // CHUNK_BYTES for source, size in ways.items()})
        found = Counter({source: count * CHUNK_BYTES for source, count in chunks.items() if count})
        assert found.total() == self.large_bytes
        return found


def test_a_site_fetches_a_package_once(stack: Stack, add: Add) -> None:
    first, second, third = (add(f"cam-{number}", "roof") for number in (1, 2, 3))
    stranger = add("door-1", "cellar")
    for agent in (first, second, third, stranger):
        agent.until_online()

    one = Release(stack, "1.0.0")
    one.bring("name=cam-1")
    assert one.large_by(first) == {"mqtt": one.large_bytes}, "nobody had it before"
    one.bring("site=roof")
    for agent in (second, third):
        assert one.large_by(agent) == {"peer": one.large_bytes}

    two = Release(stack, "2.0.0")
    two.bring("site")
    site = two.large_by(first) + two.large_by(second) + two.large_by(third)
    # Who is slow may be taken for one that does not fetch: then another one fetches a file, too.
    assert two.large_bytes <= site["mqtt"] <= 2 * two.large_bytes
    assert two.large_by(stranger) == {"mqtt": two.large_bytes}

    stack.ok("device", "decommission", first.name)
    first.end(signal.SIGKILL)
    newcomer = add("cam-4", "roof")
    newcomer.until_online()
    two.bring("name=cam-4")
    assert two.large_by(newcomer) == {"peer": two.large_bytes}
    assert "signature=" not in stack.log
