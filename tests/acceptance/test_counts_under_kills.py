"""Every request counts once in the fleet's telemetry, whatever is killed while batches come."""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from packager.package.keys import load_key
from tests.simulators.agent_process import DEVICE, null_package
from tests.simulators.patience import PATIENCE_S, until
from tests.simulators.stack import Stack, running_stack
from tests.simulators.stack_devices import StackDevice, publish

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.broker,
    pytest.mark.xdist_group("cli"),
    pytest.mark.timeout(300),
]

KILLS = ("both", "controller")
LONGEST_S = 1.0


class Client(threading.Thread):
    """Asks without end, and counts its answers."""

    def __init__(self, device: StackDevice) -> None:
        super().__init__()
        self.answers = 0
        self.ending = threading.Event()
        self._device = device
        self._address = device.ask("status")["endpoint"]

    def run(self) -> None:
        while not self.ending.wait(0.01):
            self._device.infer(self._address)
            self.answers += 1


@contextmanager
def asking(device: StackDevice) -> Iterator[Client]:
    client = Client(device)
    client.start()
    try:
        yield client
    finally:
        client.ending.set()
        client.join()


def kill(stack: Stack, victim: str, chance: random.Random) -> None:
    """End processes of a stack with SIGKILL and start them again later."""
    named = dict(zip(("broker", "controller"), stack.processes, strict=True))
    victims = [name for name in named if victim in (name, "both")]
    for name in victims:
        named[name].send_signal(signal.SIGKILL)
        named[name].wait(PATIENCE_S)
    threading.Event().wait(chance.uniform(0.1, LONGEST_S))
    stack.processes.clear()
    for name, process in named.items():
        if name in victims:
            stack.run(name, "run")
        else:
            stack.processes.append(process)
    until(stack.is_healthy, lambda: f"a controller: {stack.log}", step_s=0.05)


def counted(stack: Stack) -> float:
    """Return how many answers the controller knows of."""
    words = ("inference_runs_total", "--stat", "total", "--since", "1h", "--json")
    rows = stack.ok("telemetry", "query", *words).json["rows"]
    return float(rows[0][0]) if rows else 0.0


def test_kills_of_broker_and_controller_neither_lose_nor_double_a_request() -> None:
    chance = random.Random(16)
    with running_stack() as stack:
        publish(stack, null_package("1.0.0", key=load_key(stack.release_key)))
        device = StackDevice(stack, DEVICE, stack.ok("token", "create", "--json").json["token"])
        try:
            device.start()
            device.until_online()
            stack.ok("rollout", "create", "digits:1.0.0", "--watch")
            with asking(device) as client:
                for victim in KILLS:
                    enough = client.answers + 50
                    until(lambda: client.answers > enough, "requests")  # noqa: B023 - at once
                    kill(stack, victim, chance)
            until(
                lambda: counted(stack) >= client.answers,
                lambda: f"{client.answers} answers: {counted(stack)}",
            )
            assert counted(stack) == client.answers > 50 * len(KILLS)
        finally:
            if device.process is not None:
                device.end(signal.SIGKILL)
