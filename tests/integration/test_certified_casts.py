"""Agents with certificates hear what the controller casts, without an account of their own."""

from __future__ import annotations

import signal

import pytest

from tests.simulators.agent_process import null_package
from tests.simulators.stack import running_stack
from tests.simulators.stack_devices import StackDevice, publish
from wire.package.index import CHUNK_BYTES
from wire.progress import MULTICAST
from wire.trust.envelope import SigningKey

pytestmark = [pytest.mark.thorough, pytest.mark.broker]
AGENTS = 4
AGENT = """
[delivery]
sources = ["local", "multicast", "mqtt"]
"""
PADDING_BYTES = 24 * CHUNK_BYTES


def test_a_package_for_many_comes_to_agents_with_certificates_by_a_cast() -> None:
    agents: list[StackDevice] = []
    with running_stack() as stack:
        token = stack.ok("token", "create", "--uses", str(AGENTS), "--json").json["token"]
        try:
            for number in range(AGENTS):
                agents.append(StackDevice(stack, f"cam-{number}", token, AGENT))
                agents[-1].start()
            for agent in agents:
                assert agent.until_online()["certificate_ends_at_s"] is not None
            key = SigningKey(stack.release_key.read_bytes())
            came: list[dict[str, int]] = []
            # On a busy machine devices may ask so far apart that there is nothing to share.
            for version in ("1.0.0", "1.1.0", "1.2.0"):
                made = null_package(version, padding_bytes=PADDING_BYTES, key=key)
                publish(stack, made)
                name = f"{made.index.name}:{version}"
                stack.ok("rollout", "create", name, "--selector", "", "--stage", "100%", "--watch")
                came += [agent.bytes_by_source(name) for agent in agents]
                if any(each.get(MULTICAST) for each in came):
                    return
            raise AssertionError(came)
        finally:
            for agent in agents:
                agent.end(signal.SIGKILL)
