"""`fleet-agent`: run the agent, or ask the one that runs.

Rules:
- 0 after success, 1 when the answer is no, 2 after a fault, which is one line on stderr.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from agent.app.config import AgentConfig, load_config
from agent.app.control import SOCKET_FILE, ask
from agent.cli.reasons import reason_lines
from agent.errors import ConfigError, ControlError
from wire.clock import SystemClock
from wire.errors import FleetError

UNIT_S = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
FAULT = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: Without the program's name; those of the process when None.

    Returns:
        The exit code.
    """
    options = _parser().parse_args(arguments)
    command: Callable[[argparse.Namespace], int] = options.command
    try:
        return command(options)
    except FleetError as exc:
        sys.stderr.write(f"fleet-agent: {exc}\n")
        return FAULT


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fleet-agent", description="The agent of a device.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, help_text: str, command: Callable[..., int]) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=help_text, description=help_text)
        sub.add_argument("--config", type=Path, required=True, help="the agent's TOML file")
        sub.set_defaults(command=lambda options: command(options, load_config(options.config)))
        return sub

    def query(name: str, help_text: str, command: Callable[..., int]) -> argparse.ArgumentParser:
        sub = add(name, help_text, command)
        sub.add_argument("--json", action="store_true", help="print JSON")
        return sub

    add("run", "Run the agent in the foreground.", _run)
    query("status", "Say how the device is and what it runs.", _status)
    why = query("why", "Say what the agent decided, and why.", _why)
    why.add_argument("--since", default="1h", help="how far back, such as 90s, 15m, 1h, 2d")
    query("variants", "List the variants on this device.", _variants)
    pin = query("pin", "Let one variant serve whatever happens.", _pin)
    which = pin.add_mutually_exclusive_group(required=True)
    which.add_argument("variant", nargs="?", help="its name")
    which.add_argument("--clear", action="store_true", help="choose by health again")
    _add_record(add)
    _add_replay(commands)
    return parser


def _add_record(add: Callable[..., argparse.ArgumentParser]) -> None:
    sub = add("record", "Record what surrounds this device as a trace for replays.", _record)
    sub.add_argument("trace", type=Path, metavar="FILE", help="is made; none is written over")
    sub.add_argument(
        "--for", dest="length", default="10m", metavar="TIME", help="such as 90s, 15m, 1h (10m)"
    )
    sub.add_argument("--every", default="1s", metavar="TIME", help="between two ticks (1s)")
    sub.add_argument("--board", type=Path, metavar="FILE", help="figures for the model, as JSON")
    sub.add_argument(
        "--deadline-ms", type=float, default=100.0, help="what the application asks for (100)"
    )


def _add_replay(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "Say what a policy would do over a trace; needs no agent."
    sub = commands.add_parser("replay", help=text, description=text)
    sub.add_argument("trace", metavar="TRACE", help="a file, or the name of a shipped trace")
    sub.add_argument("--policy", default="rules", help="its name, or a JSON file with thresholds")
    where = sub.add_mutually_exclusive_group()
    where.add_argument("--package", type=Path, metavar="DIR", help="take the variants of a package")
    where.add_argument("--variants", type=Path, metavar="FILE", help="take those of a JSON file")
    sub.add_argument("--pin", metavar="VARIANT", help="let one variant serve whatever happens")
    sub.add_argument("--deadline-ms", type=float, help="in place of the trace's own")
    sub.add_argument("--json", action="store_true", help="print JSON, with every tick")
    sub.set_defaults(command=_replay)


def _run(_options: argparse.Namespace, config: AgentConfig) -> int:
    # Only this command needs the whole agent in memory.
    from agent.app.daemon import Daemon

    return Daemon(config).run()


def _status(options: argparse.Namespace, config: AgentConfig) -> int:
    status = _ask(config, "status")
    if options.json:
        return _print_json(status)
    release = status["release"] or "none"
    _say(f"device     {status['device']}")
    _say(f"controller {'connected' if status['connected'] else 'not connected'}")
    _say(f"endpoint   {status['endpoint']}")
    _say(f"package    {release}")
    _say(f"variant    {status['variant'] or 'none'} ({status['reason'] or 'nothing decided'})")
    _say(f"policy     {status['policy']['kind']}")
    _say(f"desired    revision {status['revision']}, {status['target'] or 'no release'}")
    _say(f"install    {status['phase']}")
    report = status["last_report"]
    if report and report["outcome"] == "failed":
        _say(f"last fault {report['phase']}: {report['detail']} ({report['error_code']})")
    return 0 if status["variant"] else 1


def _why(options: argparse.Namespace, config: AgentConfig) -> int:
    within_s = _duration_s(options.since)
    events = _reasons(config, within_s)
    if options.json:
        return _print_json(events)
    for event in events:
        for line in reason_lines(event):
            _say(line)
    if not events:
        _remark(f"nothing happened within {options.since}")
    return 0


def _reasons(config: AgentConfig, within_s: float) -> list[dict[str, Any]]:
    """Return what the agent tells, or what it stored when there is none that tells.

    Raises:
        ControlError: Neither is to be had.
    """
    try:
        return list(_ask(config, "why", {"within_s": within_s}))
    except ControlError as exc:
        # An agent that says no was there; a connection that failed has the system's error below it.
        if not isinstance(exc.__cause__, OSError):
            raise
        silence = exc
    from agent.app.assembly import SPOOL_FILE
    from telemetry.device.spool import EVENTS_KEPT
    from telemetry.device.spool_reader import stored_events
    from telemetry.errors import SpoolError
    from wire.codec import to_builtins

    since_s = SystemClock().now_s() - within_s
    try:
        events = stored_events(config.state_dir / SPOOL_FILE, (), since_s, EVENTS_KEPT)
    except SpoolError as exc:
        raise ControlError(f"{silence.message}; {exc.message}", remedy=silence.remedy) from exc
    _remark("no agent answers: this is what it stored")
    return [to_builtins(event) for event in events]


def _variants(options: argparse.Namespace, config: AgentConfig) -> int:
    variants = _ask(config, "variants")
    if options.json:
        return _print_json(variants)
    for variant in variants:
        mark = "*" if variant["serving"] else " "
        latency_ms = variant.get("latency_p50_ms")
        latency = "-" if latency_ms is None else f"{latency_ms:.3g} ms"
        _say(f"{mark} {variant['name']:<32} {latency:>9}  {variant['verdict']}")
    return 0 if variants else 1


def _pin(options: argparse.Namespace, config: AgentConfig) -> int:
    answer = _ask(config, "pin", {"variant": None if options.clear else options.variant})
    if options.json:
        return _print_json(answer)
    _say(f"pinned to {answer['pinned']}" if answer["pinned"] else "not pinned")
    return 0


def _record(options: argparse.Namespace, config: AgentConfig) -> int:
    # The supervisor never needs it.
    from agent.cli.record import Order, record

    order = Order(
        path=options.trace,
        length_s=_duration_s(options.length),
        period_s=_duration_s(options.every),
        deadline_ms=options.deadline_ms,
        board=options.board,
    )
    _say(record(order, config, _remark))
    return 0


def _replay(options: argparse.Namespace) -> int:
    # The supervisor never needs it.
    from agent.cli.replay import report

    text = report(
        options.trace,
        policy=options.policy,
        package=options.package,
        variants=options.variants,
        pinned=options.pin,
        deadline_ms=options.deadline_ms,
        as_json=options.json,
    )
    sys.stdout.write(text)
    return 0


def _ask(config: AgentConfig, command: str, arguments: dict[str, Any] | None = None) -> Any:  # noqa: ANN401 - any JSON
    return ask(config.state_dir / SOCKET_FILE, command, arguments)


def _remark(line: str) -> None:
    sys.stderr.write(f"fleet-agent: {line}\n")
    sys.stderr.flush()


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def _print_json(value: Any) -> int:  # noqa: ANN401 - any JSON
    _say(json.dumps(value, indent=2, sort_keys=True))
    return 0


def _duration_s(text: str) -> float:
    match = re.fullmatch(r"([0-9]{1,9})(ms|[smhd])", text)
    if match is None:
        raise ConfigError(f"not a duration: {text[:40]!r}", remedy="write it as 90s, 15m, 1h or 2d")
    return int(match[1]) * UNIT_S[match[2]]


if __name__ == "__main__":
    sys.exit(main())
