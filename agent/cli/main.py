"""`fleet-agent`: run the agent, or ask the one that runs.

Rules:
- The exit code is 0 after success, 1 if the answer is no, and 2 after a fault. A fault is one line
  on stderr.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any, Final

from agent.app.config import AgentConfig
from agent.app.config_file import load_config
from agent.app.control import SOCKET_FILE, ask
from agent.cli.parser import PROGRAM, Run, build_parser
from agent.errors import ConfigError, ControlError
from wire.clock import SystemClock
from wire.console.program import run_program
from wire.durations import parse_duration_s
from wire.errors import WireFormatError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: Arguments without the program's name; None for those of the process.

    Returns:
        The exit status.
    """
    return run_program(PROGRAM, _command, arguments)


def _command(arguments: list[str]) -> int:
    parser = build_parser(RUNS)
    options = parser.parse_args(arguments)
    if "run" not in options:
        parser.print_help()
        return 0
    run: Run = options.run
    return run(options)


def _run(options: argparse.Namespace) -> int:
    # Only this command needs the whole agent in memory.
    from agent.app.daemon import Daemon

    return Daemon(load_config(options.config)).run()


def _status(options: argparse.Namespace) -> int:
    status = _ask(load_config(options.config), "status", _named(options))
    if options.json:
        _print_json(status)
    else:
        # Only this command needs it.
        from agent.cli.status import write_status

        write_status(status)
    models = status.get("models") or [status]  # an agent of an earlier version knows one
    return 0 if all(model["variant"] for model in models) else 1


def _why(options: argparse.Namespace) -> int:
    within_s = _duration_s(options.since, "--since")
    kinds: list[str] = options.kind or []
    events = _reasons(load_config(options.config), within_s, options.model, kinds)
    from telemetry.reasons import KINDS, reason_lines
    from wire.console.output import write_lines

    for kind in sorted({*kinds} - {*KINDS} - {event["kind"] for event in events}):
        raise ConfigError(
            f"--kind: there is no kind of events {kind!r}", remedy=f"kinds are {', '.join(KINDS)}"
        )
    if options.json:
        return _print_json(events)
    for event in events:
        data = event.get("data") or {}
        write_lines(reason_lines(event["at_s"], event["kind"], event["reason"], data))
    if not events:
        of_kind = f" of kind {' or '.join(kinds)}" if kinds else ""
        _remark(f"nothing{of_kind} happened within {options.since}")
    return 0


def _reasons(
    config: AgentConfig, within_s: float, model: str | None, kinds: list[str]
) -> list[dict[str, Any]]:
    """Return the agent's events; if no agent runs, the events that the last one stored.

    Raises:
        ControlError: Neither can be read.
    """
    try:
        wanted = {} if model is None else {"model": model}
        return list(_ask(config, "why", {"within_s": within_s, "kinds": kinds} | wanted))
    except ControlError as exc:
        # Only a failed connection has an error of the system as its cause; else the agent refused.
        if not isinstance(exc.__cause__, OSError):
            raise
        silence = exc
    from agent.app.spooling import SPOOL_FILE
    from telemetry.about import is_about
    from telemetry.device.spool import EVENTS_KEPT
    from telemetry.device.spool_reader import stored_events
    from telemetry.errors import SpoolError
    from wire.codec import to_builtins

    since_s = SystemClock().now_s() - within_s
    try:
        events = stored_events(config.state_dir / SPOOL_FILE, (*kinds,), since_s, EVENTS_KEPT)
    except SpoolError as exc:
        raise ControlError(f"{silence.message}; {exc.message}", remedy=silence.remedy) from exc
    _remark("no agent answers; these are the events that it stored")
    found = [to_builtins(event) for event in events]
    return [event for event in found if is_about(event.get("data") or {}, model)]


def _variants(options: argparse.Namespace) -> int:
    variants = _ask(load_config(options.config), "variants", _named(options))
    if options.json:
        return _print_json(variants)
    from wire.console.output import write_table

    write_table(
        ("MODEL", "VARIANT", "SERVES", "P50 MS", "VERDICT"),
        [
            (v["model"], v["name"], v["serving"], v.get("latency_p50_ms"), v["verdict"])
            for v in variants
        ],
    )
    for rests in sorted({v.get("rests", "") for v in variants} - {""}):
        _remark(rests)
    return 0 if variants else 1


def _pin(options: argparse.Namespace) -> int:
    variant = None if options.clear else options.variant
    answer = _ask(load_config(options.config), "pin", {"variant": variant} | _named(options))
    if options.json:
        return _print_json(answer)
    pinned, serving = answer["pinned"], answer["variant"] or "nothing"
    if rests := answer.get("rests"):
        _say(f"pinned to {pinned}, but {rests}" if pinned else f"not pinned; {rests}")
    elif pinned is None:
        _say(f"not pinned; {serving} serves")
    elif pinned == serving:
        _say(f"pinned to {pinned}, which serves")
    else:
        why = f": {answer['verdict']}" if answer["verdict"] else ""
        _say(f"pinned to {pinned}, but {serving} serves{why}")
    return 0


def _install(options: argparse.Namespace) -> int:
    # The supervisor never needs it.
    from agent.cli.install import hand_over, lines

    answer = hand_over(options.file, load_config(options.config))
    if options.json:
        return _print_json(answer)
    for line in lines(answer):
        _say(line)
    return 0


def _trust(options: argparse.Namespace) -> int:
    # The supervisor never needs it.
    from agent.cli.install import hand_over, trust_lines

    answer = hand_over(options.file, load_config(options.config), "metadata")
    if options.json:
        _print_json(answer)
    else:
        for line in trust_lines(answer):
            _say(line)
    return 1 if answer["stale"] or answer["refused"] else 0


def _override(options: argparse.Namespace) -> int:
    for_s = None if options.clear else _duration_s(options.length, "--for")
    answer = _ask(load_config(options.config), "override", {"for_s": for_s})
    if options.json:
        return _print_json(answer)
    if answer["override_s"] is None:
        _say("hooks, window, battery and budgets count")
    elif answer["waits_for"]:
        _say(f"the install goes on now; without the override: {answer['waits_for']}")
    else:
        _say(f"the next install within {options.length} goes on, whatever would hold it")
    return 0


def _record(options: argparse.Namespace) -> int:
    # The supervisor never needs it.
    from agent.cli.record import Job, record

    job = Job(
        path=options.trace,
        length_s=_duration_s(options.length, "--for"),
        period_s=_duration_s(options.every, "--every"),
        deadline_ms=options.deadline_ms,
        board=options.board,
    )
    _say(record(job, load_config(options.config), _remark))
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


def _profile(options: argparse.Namespace) -> int:
    # The supervisor never needs it.
    from agent.cli.profile import describe

    sys.stdout.write(describe(options.name or "", options.output, as_json=options.json))
    return 0


def _completion(options: argparse.Namespace) -> int:
    from agent.cli.completion import completion_script

    sys.stdout.write(completion_script(options.shell, build_parser(RUNS)))
    return 0


RUNS: Final[dict[str, Run]] = {
    "run": _run,
    "status": _status,
    "why": _why,
    "variants": _variants,
    "pin": _pin,
    "install": _install,
    "trust": _trust,
    "override": _override,
    "record": _record,
    "replay": _replay,
    "profile": _profile,
    "completion": _completion,
}


def _named(options: argparse.Namespace) -> dict[str, Any]:
    """Return the argument that names the model of a command, if one is given."""
    return {} if options.model is None else {"model": options.model}


def _ask(config: AgentConfig, command: str, arguments: dict[str, Any] | None = None) -> Any:  # noqa: ANN401 - any JSON
    return ask(config.state_dir / SOCKET_FILE, command, arguments)


def _remark(line: str) -> None:
    sys.stderr.write(f"{PROGRAM}: {line}\n")
    sys.stderr.flush()


def _say(line: str) -> None:
    # Not `wire.console.output.write`: the daemon is this program too, and its modules cost memory.
    sys.stdout.write(f"{line}\n")


def _print_json(value: Any) -> int:  # noqa: ANN401 - any JSON
    _say(json.dumps(value, indent=2, sort_keys=True))
    return 0


def _duration_s(text: str, option: str) -> float:
    try:
        return parse_duration_s(text)
    except WireFormatError as exc:
        raise ConfigError(f"{option}: {exc.message}", remedy=exc.remedy) from exc


if __name__ == "__main__":
    sys.exit(main())
