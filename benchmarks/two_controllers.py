"""What a second controller takes off the first: simulated devices that report each second.

One fleet with one broker and one PostgreSQL, each a process. By turns one controller has it alone
and two share it. All are on one machine, so what is read is the processor time of each.

- "For a message" counts what devices sent meanwhile. Ticks and checks of an idle controller are in
  it, and twice where there are two.
- The share of the one that works more says how evenly the broker deals messages out: 50 % is even.
"""

from __future__ import annotations

import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.databases.postgres import postgres
from benchmarks.harness import Row, against, alone, main, not_measured
from benchmarks.scale_devices import must, processor_s, until
from controller.cli.simulation import Simulation
from examples.digits.box import free_port
from tests.simulators.stack import Stack, fleet, shared, simulated

DEVICES, QUICK_DEVICES = 100, 10
ROUNDS, QUICK_ROUNDS = 5, 1
ROUND_S: Final = 20.0
SETTLED_S: Final = 3.0
"""The broker deals messages out to both by then, and a start costs no more."""

TELEMETRY_S: Final = 1.0


@dataclass
class Round:
    """What controllers used while devices reported."""

    processor_s: list[float]
    """Of each controller."""

    messages: int

    @property
    def ms(self) -> float:
        """For each message, of all controllers."""
        return 1e3 * sum(self.processor_s) / self.messages


def measure(quick: bool) -> list[Row]:
    """Measure one controller and two, by turns."""
    devices, rounds = (QUICK_DEVICES, QUICK_ROUNDS) if quick else (DEVICES, ROUNDS)
    with ExitStack() as ending:
        url = ending.enter_context(postgres())
        if url is None:
            return [not_measured("two controllers", "PostgreSQL is not installed")]
        folder = Path(ending.enter_context(tempfile.TemporaryDirectory(prefix="edgefleet-two-")))
        one = Stack(home=folder / "one/home", api_port=free_port(), broker_port=free_port())
        made = fleet(
            "init", str(one.home), "--api-port", str(one.api_port), "--broker-port",
            str(one.broker_port), "--device-port", str(free_port()), "--database", url,
        )  # fmt: skip
        must(made.code == 0, made.err)
        two = shared(one, folder / "two", url)
        ending.callback(one.stop)
        one.start()
        simulation = ending.enter_context(
            Simulation([simulated(one, devices, telemetry_s=TELEMETRY_S)])
        )
        until(lambda: simulation.tally.online == devices, "all devices")
        both: list[tuple[Round, Round]] = []
        for _ in range(rounds):
            plain = _round(simulation, one)
            two.run("controller", "run")
            ending.callback(two.stop)
            until(two.is_healthy, "a second controller")
            both.append((plain, _round(simulation, one, two)))
            two.stop()
        must(simulation.tally.batches_lost == 0, "no batch of telemetry is lost")
    return [
        against(
            f"two controllers, {devices} devices: for a message",
            [each.ms for _, each in both], [each.ms for each, _ in both],
            unit="ms processor", peer="one controller",
        ),
        against(
            "the one that works more of two",
            [max(each.processor_s) / ROUND_S for _, each in both],
            [each.processor_s[0] / ROUND_S for each, _ in both],
            unit="of a core", peer="one controller",
        ),
        alone(
            "its share of the work of both",
            [100.0 * max(each.processor_s) / sum(each.processor_s) for _, each in both],
            unit="%",
        ),
    ]  # fmt: skip


def _round(simulation: Simulation, *stacks: Stack) -> Round:
    time.sleep(SETTLED_S)
    pids = [stack.processes[-1].pid for stack in stacks]
    before, sent = [processor_s(pid) for pid in pids], simulation.tally.sent
    time.sleep(ROUND_S)
    simulation.check()
    used = [processor_s(pid) - was for pid, was in zip(pids, before, strict=True)]
    return Round(used, simulation.tally.sent - sent)


if __name__ == "__main__":
    sys.exit(main("A fleet that two controllers share", measure))
