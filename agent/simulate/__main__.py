"""The program that plays devices; `fleet simulate` starts it.

Rules:
- The plan comes as one line of JSON on standard input, whose end ends the program, too: so it does
  not outlive who started it. Each second a line of JSON on standard output tells the tally.
"""

from __future__ import annotations

import gc
import os
import sys
import tempfile
import threading
from pathlib import Path
from typing import Final

from agent.errors import ConfigError
from agent.simulate.fleet import Fleet
from wire.clock import SystemClock
from wire.codec import from_json, to_json
from wire.errors import FleetError
from wire.hosts import is_loopback
from wire.profile import checked_profile
from wire.simulation import Plan, Tally
from wire.stop_signals import on_stop_signal

MAX_PLAN_BYTES: Final = 1024 * 1024


def main() -> int:
    """Play devices until told to end.

    Returns:
        The exit status.
    """
    try:
        plan = _plan(sys.stdin.buffer.readline(MAX_PLAN_BYTES))
        with tempfile.TemporaryDirectory(prefix="edgefleet-simulate-") as made:
            _play(Fleet(plan, Path(made), SystemClock()))
    except FleetError as exc:
        sys.stderr.write(f"{exc}\n")
        return 2
    return 0


def _plan(line: bytes) -> Plan:
    """Read the plan.

    Raises:
        ConfigError: Secrets would cross a network in the clear.
        WireFormatError: It is no plan.
    """
    plan = from_json(line, Plan, limit_bytes=MAX_PLAN_BYTES)
    checked_profile(plan.profile)
    if plan.ca_file is None and not is_loopback(plan.host):
        raise ConfigError(
            f"without its authority the token would go to the broker at {plan.host} in the clear",
            remedy="name it with --broker-ca FILE",
        )
    return plan


def _play(fleet: Fleet) -> None:
    gc.freeze()
    threading.Thread(target=_hold, args=(fleet,), daemon=True).start()
    with on_stop_signal(fleet.stop):
        fleet.run(_tell)


def _hold(fleet: Fleet) -> None:
    """Stop when who started this program is gone."""
    # Not by `sys.stdin`, whose lock a thread that waits would hold at the end of the program.
    while os.read(sys.stdin.fileno(), 4096):
        pass
    fleet.stop()


def _tell(tally: Tally) -> None:
    try:
        sys.stdout.buffer.write(to_json(tally) + b"\n")
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        return  # the end of standard input follows


if __name__ == "__main__":
    sys.exit(main())
