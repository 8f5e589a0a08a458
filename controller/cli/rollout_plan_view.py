"""What a rollout would do, as people read it: why not, the stages, the devices, bytes and time."""

from __future__ import annotations

from typing import Final

from controller.cli.arguments import selected
from controller.cli.preflight import names_line, write_refusing
from controller.cli.rollout_control import limits_text
from controller.cli.stage_view import rate_text, rules_text
from controller.domain.rollout_plan import LEAST_EARLIER
from controller.domain.wording import counted
from controller.rollout_plan_schemas import PlannedBytes, RolloutPlan
from controller.stage_schemas import PlannedStage
from wire.console.output import remark, write, write_fields, write_lines, write_table
from wire.console.progress import about_text
from wire.console.sizes import bytes_text
from wire.console.text import plain_text

NAMED: Final = 10
"""Devices that are named in each place."""

NOT_TOLD: Final = "(not told)"


def write_plan(plan: RolloutPlan) -> None:
    """Write what a rollout would do.

    Args:
        plan: What the controller said.
    """
    write_fields(
        [
            ("rollout", f"{plan.id}, not begun"),
            ("release", plan.release),
            ("devices", f"{plan.devices} of {selected(plan.selector)}"),
            *([("run it already", plan.preflight.runs)] if plan.preflight.runs else []),
            ("will refuse", plan.preflight.refuses),
            *([("not greeted", plan.preflight.unknown)] if plan.preflight.unknown else []),
            *([("control group", _control(plan))] if _has_gates(plan) else []),
            *(("gate", gate) for gate in plan.gates),
            *((f"gate, stage {s.number}", gate) for s in plan.stages for gate in s.gates),
            *([("spread over", plan.spread)] if plan.spread else []),
            *([("devices start", rate_text(plan.rate))] if plan.rate else []),
            ("limits", limits_text(plan.limits)),
            *(("activates", f"{hours}, in local time") for hours in plan.windows),
            *([("opens", _opens(plan.opens_in_s))] if plan.opens_in_s is not None else []),
            ("to fetch", _bytes(plan)),
            *_times(plan),
        ]
    )
    for reason in plan.refused:
        write()
        write_lines([f"it would not begin: {plain_text(reason)}"])
    for part in plan.busy:
        write()
        write_lines([f"{counted(part.count)} in rollout {part.rollout}:"])
        write_lines([names_line(part.devices, part.count)])
    for older in plan.supersedes:
        write()
        stays = f"; {counted(older.stays)} to finish there first"
        write_lines(
            [
                f"{counted(older.moves)} would move from rollout {older.rollout}"
                + (stays if older.stays else "")
                + ":",
                names_line(older.devices, older.moves),
            ]
        )
    write_refusing(plan.preflight)
    write()
    _write_stages(plan)
    _write_bytes("PROFILE", plan.by_profile)
    _write_bytes("NETWORK", plan.by_network)
    if _has_gates(plan) and not plan.refused:
        remark(
            "when gates can tell depends on how devices differ: `fleet rollout rehearse -f FILE` "
            "plays it by what they have measured"
        )
    # One that would not begin has to be changed, and then others may start first.
    again = "" if plan.refused else f"; with --id {plan.id} the same devices start first"
    remark(f"nothing was begun: --dry-run{again}")


def _control(plan: RolloutPlan) -> str:
    if not plan.control:
        return "none: devices are compared with themselves before"
    return f"{counted(plan.control)} with the old release to the end"


def _bytes(plan: RolloutPlan) -> str:
    unknown = f"; of {counted(plan.unknown_bytes)} not known" if plan.unknown_bytes else ""
    return f"at most {bytes_text(plan.total_bytes)} in all{unknown}"


def _times(plan: RolloutPlan) -> list[tuple[str, object]]:
    earlier = plan.earlier
    if earlier is None:
        few = f"the model has fewer than {LEAST_EARLIER} earlier installs"
        return [("takes", f"not known yet: {few}")]
    half, most = about_text(earlier.median_s), about_text(earlier.slow_s)
    return [
        ("takes", f"about {_span(plan.expected_s, plan.slow_s)}"),
        ("earlier installs", f"{earlier.count}: half took up to {half}, nine of ten {most}"),
    ]


def _opens(in_s: float) -> str:
    when = f"in {about_text(in_s)}" if in_s else "now"
    return f"{when}, by the clock of the controller"


def _span(expected_s: float | None, slow_s: float | None) -> str:
    if expected_s is None or slow_s is None:
        return "not known yet"
    short, long = about_text(expected_s), about_text(slow_s)
    return short if short == long else f"{short} to {long}"


def _has_gates(plan: RolloutPlan) -> bool:
    return bool(plan.gates) or any(stage.gates for stage in plan.stages)


def _write_stages(plan: RolloutPlan) -> None:
    write_table(
        ("STAGE", "TO DEVICES", "START", "OFFLINE", "PROFILES", "RULES", "GATES", "TAKES"),
        [
            (
                stage.number, stage.target, stage.count, stage.offline,
                " ".join(f"{name}={count}" for name, count in stage.profiles.items()),
                rules_text(stage), _gates(plan, stage), _span(stage.expected_s, stage.slow_s),
            )
            for stage in plan.stages
        ],
        minor=("OFFLINE", "PROFILES"),
    )  # fmt: skip
    write()
    for stage in plan.stages:
        if stage.devices:
            write_lines([f"stage {stage.number}:{names_line(stage.devices, stage.count)[1:]}"])
    if plan.control_devices:
        write_lines([f"control group:{names_line(plan.control_devices, plan.control)[1:]}"])


def _gates(plan: RolloutPlan, stage: PlannedStage) -> str:
    if not plan.gates and not stage.gates:
        return "none"
    return "asked" if stage.asks_gates else "too few devices"


def _write_bytes(heading: str, rows: list[PlannedBytes]) -> None:
    if rows:
        write()
        write_table(
            (heading, "DEVICES", "EACH AT MOST", "ALL AT MOST"),
            [
                (
                    row.kind or NOT_TOLD, row.devices, bytes_text(row.each_bytes),
                    bytes_text(row.total_bytes),
                )
                for row in rows
            ],
        )  # fmt: skip
