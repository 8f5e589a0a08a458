"""A site whose devices share one thin uplink: what a release costs with and without neighbours.

Rules:
- Controller, broker and agents are processes as users start them. All that the agents and the
  broker say to each other goes over the link, over TLS; what agents say to each other does not.
- The same agents are measured in all ways: without the label of the site they have no neighbours.
- A device is done when it has the whole package, before it starts the model.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from agent.install.slots import Slots
from benchmarks.harness import Row, against
from benchmarks.transfers.figures import KB, MB
from benchmarks.transfers.link import Link
from benchmarks.transfers.pace import LinkShape
from examples.digits.box import free_port
from tests.simulators.agent_process import null_package
from tests.simulators.patience import until
from tests.simulators.stack import Stack, running_stack
from tests.simulators.stack_devices import StackDevice, publish
from wire.clock import SystemClock
from wire.trust.envelope import SigningKey

LATENCY_S: Final = 0.02
FILES: Final = 2
"""Large ones of a release, one for each of its variants."""

SENT_AT_MOST: Final = 1.5
CONTROLLER: Final = """
[peers]
label = "site"
networks = ["127.0.0.0/8"]
[deltas]
enabled = false
"""
"""What is fetched is random: to look for deltas would only take the processor's time."""

AGENT: Final = """
[peers]
listen = "127.0.0.1:{port}"
[delivery]
sources = ["local", "peer", "mqtt"]
"""


@dataclass(frozen=True, slots=True)
class _Run:
    """One release to some devices."""

    last_s: float
    """From the first order until the last device had all."""

    sent_bytes: int
    """Over the uplink, with everything beside the package."""

    package_bytes: int


class _Site:
    """The devices and their link."""

    def __init__(self, stack: Stack, link: Link, agents: Sequence[StackDevice]) -> None:
        self._stack = stack
        self._link = link
        self._agents = tuple(agents)
        self._clock = SystemClock()
        self._releases = 0

    def run(self, count: int, size_bytes: int, *, has_peers: bool) -> _Run:
        """Bring a new release to the first of the devices."""
        agents = self._agents[:count]
        change = "site=roof" if has_peers else "site-"
        for agent in agents:
            self._stack.ok("device", "label", agent.name, change)
        self._releases += 1
        made = null_package(
            f"{self._releases}.0.0",
            padding_bytes=size_bytes // FILES,
            key=SigningKey(self._stack.release_key.read_bytes()),
        )
        publish(self._stack, made)
        slots = [Slots(agent.config.state_dir) for agent in agents]
        before_bytes = self._link.down_bytes
        names = ",".join(agent.name for agent in agents)
        order = (f"digits:{made.index.version}", "--selector", f"name in ({names})", "--json")
        rollout = self._stack.ok("rollout", "create", *order).json["id"]
        until(lambda: any(made.digest in each.arriving() for each in slots), "a first device")
        began_s = self._clock.monotonic_s()
        until(lambda: all(each.has(made.digest) for each in slots), "the last device")
        run = _Run(
            last_s=self._clock.monotonic_s() - began_s,
            sent_bytes=self._link.down_bytes - before_bytes,
            package_bytes=sum(len(blob) for blob in made.blobs),
        )
        self._stack.ok("rollout", "watch", rollout)
        return run


def one_uplink(count: int, size_bytes: int, bytes_per_s: float, *, rounds: int) -> list[Row]:
    """Measure a site.

    Args:
        count: How many devices it has.
        size_bytes: Of the release.
        bytes_per_s: Of the link that they share.
        rounds: How many.

    Returns:
        The rows.
    """
    one: list[_Run] = []
    near: list[_Run] = []
    far: list[_Run] = []
    with _running_site(count, bytes_per_s) as site:
        for _ in range(rounds):
            one.append(site.run(1, size_bytes, has_peers=False))
            near.append(site.run(count, size_bytes, has_peers=True))
            far.append(site.run(count, size_bytes, has_peers=False))
    title = f"{count} devices behind {bytes_per_s / KB:g} KB/s, {size_bytes / MB:g} MB"
    sent_mb, last_s = [run.sent_bytes / MB for run in near], [run.last_s for run in near]
    return [
        against(
            f"{title}: over the uplink", sent_mb, [run.package_bytes / MB for run in near],
            unit="MB", peer="the package once", at_most=SENT_AT_MOST,
        ),
        against(
            f"{title}: over the uplink", sent_mb, [run.sent_bytes / MB for run in far],
            unit="MB", peer="without neighbours",
        ),
        against(
            f"{title}: last", last_s, [run.last_s for run in one],
            unit="s", peer="one device alone",
        ),
        against(
            f"{title}: last", last_s, [run.last_s for run in far],
            unit="s", peer="without neighbours",
        ),
    ]  # fmt: skip


@contextlib.contextmanager
def _running_site(count: int, bytes_per_s: float) -> Iterator[_Site]:
    shape = LinkShape(bytes_per_s=bytes_per_s, latency_s=LATENCY_S)
    with (
        running_stack(CONTROLLER, only_passwords=True) as stack,  # one port, behind the link
        Link(stack.broker_port, shape, is_shared=True) as link,
        contextlib.ExitStack() as running,
    ):
        agents = []
        for number in range(count):
            name = f"cam-{number + 1}"
            label = ("--label", f"name={name}")
            token = stack.ok("token", "create", *label, "--json").json["token"]
            settings = AGENT.format(port=free_port())
            agents.append(StackDevice(stack, name, token, settings, port=link.port))
            agents[-1].start()
            running.callback(agents[-1].end, signal.SIGTERM)
        for agent in agents:
            agent.until_online()
        yield _Site(stack, link, agents)
