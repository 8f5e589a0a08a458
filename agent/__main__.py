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

from agent.config import AgentConfig, load_config
from agent.control import SOCKET_FILE, ask
from agent.errors import ConfigError
from wire.errors import FleetError

UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
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
    _add_replay(commands)
    return parser


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
    from agent.daemon import Daemon

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
    _say(f"desired    revision {status['revision']}, {status['target'] or 'no release'}")
    _say(f"install    {status['phase']}")
    report = status["last_report"]
    if report and report["outcome"] == "failed":
        _say(f"last fault {report['phase']}: {report['detail']} ({report['error_code']})")
    return 0 if status["variant"] else 1


def _why(options: argparse.Namespace, config: AgentConfig) -> int:
    events = _ask(config, "why", {"within_s": _duration_s(options.since)})
    if options.json:
        return _print_json(events)
    for event in events:
        data = event.get("data", {})
        change = f" {data['from']} -> {data['to']}" if {"from", "to"} <= data.keys() else ""
        _say(f"{event['at_s']:.3f} {event['kind']}{change}: {event['reason']}")
        for name, verdict in sorted(data.get("verdicts", {}).items()):
            _say(f"    not {name}: {verdict}")
    return 0


def _variants(options: argparse.Namespace, config: AgentConfig) -> int:
    variants = _ask(config, "variants")
    if options.json:
        return _print_json(variants)
    for variant in variants:
        mark = "*" if variant["serving"] else " "
        _say(f"{mark} {variant['name']:<32} {variant['verdict']}")
    return 0 if variants else 1


def _pin(options: argparse.Namespace, config: AgentConfig) -> int:
    answer = _ask(config, "pin", {"variant": None if options.clear else options.variant})
    if options.json:
        return _print_json(answer)
    _say(f"pinned to {answer['pinned']}" if answer["pinned"] else "not pinned")
    return 0


def _replay(options: argparse.Namespace) -> int:
    # The supervisor never needs it.
    from agent.replays.command import report

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


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def _print_json(value: Any) -> int:  # noqa: ANN401 - any JSON
    _say(json.dumps(value, indent=2, sort_keys=True))
    return 0


def _duration_s(text: str) -> int:
    match = re.fullmatch(r"(\d{1,9})([smhd])", text)
    if match is None:
        raise ConfigError(f"not a duration: {text!r}", remedy="write it as 90s, 15m, 1h or 2d")
    return int(match[1]) * UNIT_S[match[2]]


if __name__ == "__main__":
    sys.exit(main())
