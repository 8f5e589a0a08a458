"""A build's result as one HTML file, without scripts, other files or the network.

Rules:
- The page shows first what each profile gets, then how good and fast it is, why other candidates
  are missing, and which steps ran.
- Each latency has the name of the machine that measured it. The plots of devices with another
  architecture do not show it.
- A figure that was not measured is a dash with the reason.
- Equal results give equal bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from packager.errors import BuildError
from packager.judge.gates import Gates
from packager.report import further, shapes
from packager.report.devices import devices
from packager.report.layers import layer_tables
from packager.report.marks import ALL_MARKS
from packager.report.text import (
    architecture_of,
    error_text,
    machine_of,
    ms,
    range_text,
    share,
    size_text,
    sqnr_text,
)
from packager.result import BuildResult, CandidateReport
from wire.codec import to_pretty_json
from wire.files import PUBLIC, write_atomic
from wire.profile import DeviceProfile

TEMPLATES: Final = Path(__file__).resolve().parent / "templates"
SLOWEST_STEPS: Final = 5
PAGE: Final = ".html"
JSON: Final = ".json"


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the table of all figures, as text."""

    name: str
    size: str
    quality: tuple[str, ...]
    """Metric, retention, agreement, SQNR, worst error, samples; empty for a lost candidate."""

    cost: tuple[str, ...]
    """Median, 95th percentile, spread, load, first inference, peak, runs; empty if unknown."""

    why: str
    """Why there is no cost, or which other machine measured it."""


def report_page(
    result: BuildResult, profiles: Sequence[DeviceProfile], *, gates: Gates | None = None
) -> str:
    """Return the report of a build as an HTML page.

    Args:
        result: The result of the build.
        profiles: The profiles that it was built for.
        gates: The limits of the build, which are drawn as lines; None if they are not known.

    Returns:
        The page.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    machine = machine_of(result)
    return environment.get_template("report.html.j2").render(
        result=result,
        size=size_text(result.size_bytes),
        machine=machine,
        devices=devices(result, profiles, gates),
        figures=[_figures(candidate, machine, profiles) for candidate in result.candidates],
        further=further.page_rows(result.candidates),
        shapes=shapes.page_rows(result.candidates),
        layers=layer_tables(result.candidates),
        steps=_steps(result),
        marks=ALL_MARKS,
        chance=_chance(result),
    )


def check_report_path(path: Path, package: Path | None = None) -> None:
    """Refuse a path that no report can be written to.

    Args:
        path: Where the report is wanted.
        package: The package's directory, whose files are all signed; None if it is not known.

    Raises:
        BuildError: The name does not end in `.html` or `.json`, the path is a directory, or it is
            in the package.
    """
    if path.suffix not in {PAGE, JSON}:
        raise BuildError(
            f"a report cannot be written as {path.name!r}",
            remedy=f"use a name with {PAGE} or {JSON}",
        )
    if path.is_dir():
        raise BuildError(f"{path} is a directory", remedy="name a file for the report")
    if package is not None and path.resolve().is_relative_to(package.resolve()):
        raise BuildError(
            f"the report {path} would be a part of the package",
            remedy="write the report outside the package",
        )


def write_report(
    path: Path,
    result: BuildResult,
    profiles: Sequence[DeviceProfile],
    *,
    gates: Gates | None = None,
) -> None:
    """Write the report of a build, completely or not at all: as a page or as JSON, by its name.

    Args:
        path: The file; an existing one is replaced.
        result: The result of the build.
        profiles: The profiles that it was built for.
        gates: The limits of the build, for the page.

    Raises:
        BuildError: The path is not valid for a report, or cannot be written.
    """
    check_report_path(path, Path(result.package))
    if path.suffix == JSON:
        content = to_pretty_json(result)
    else:
        content = report_page(result, profiles, gates=gates).encode()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, content, mode=PUBLIC)
    except OSError as exc:
        raise BuildError(
            f"{path} cannot be written: {exc.strerror}", remedy="name another file with --report"
        ) from exc


def _figures(
    candidate: CandidateReport, machine: str, profiles: Sequence[DeviceProfile]
) -> Figures:
    accuracy, performance = candidate.accuracy, candidate.performance
    quality: tuple[str, ...] = ()
    cost: tuple[str, ...] = ()
    why = candidate.lost
    if accuracy is not None:
        known = accuracy.certainty or None
        retention_range = range_text(known.retention_low, known.retention_high) if known else ""
        agreement_range = range_text(known.agreement_low, known.agreement_high) if known else ""
        quality = (
            share(accuracy.value),
            share(accuracy.retention) + retention_range,
            share(accuracy.agreement) + agreement_range,
            sqnr_text(accuracy.sqnr_db, accuracy.worst_error),
            error_text(accuracy.worst_error),
            str(accuracy.samples),
        )
    if performance is not None:
        cost = (
            ms(performance.latency_p50_ms),
            ms(performance.latency_p95_ms),
            ms(performance.latency_iqr_ms),
            ms(performance.load_ms),
            ms(performance.first_inference_ms),
            size_text(performance.peak_memory_bytes),
            str(performance.runs),
        )
        why = "" if performance.machine == machine else f"measured on {performance.machine}"
    elif not why:
        why = f"not measured: {_unmeasured(candidate, machine, profiles)}"
    return Figures(
        name=candidate.name,
        size=size_text(candidate.size_bytes),
        quality=quality,
        cost=cost,
        why=why,
    )


def _unmeasured(candidate: CandidateReport, machine: str, profiles: Sequence[DeviceProfile]) -> str:
    meant = {p.architecture for p in profiles if p.name in candidate.planned}
    if meant and architecture_of(machine) not in meant:
        return f"built for {' and '.join(sorted(meant))}"
    return "built for instructions that the measuring machine does not have"


def _chance(result: BuildResult) -> str:
    """Say what the ranges of the figures mean; empty if there are none."""
    for candidate in result.candidates:
        if candidate.accuracy is not None and candidate.accuracy.certainty:
            known = candidate.accuracy.certainty
            return (
                "In brackets: the range that other samples would give. Each end holds with "
                f"{known.confidence:.2%} confidence; so all lower ends hold together with 95 %, "
                f"whichever of {known.compared} candidates is chosen."
            )
    return ""


def _steps(result: BuildResult) -> dict[str, Any]:
    states = Counter(step.state for step in result.steps)
    done = sorted(result.steps, key=lambda step: (-step.seconds, step.name))
    return {
        "counts": [(states[s], s) for s in ("done", "cached", "failed", "skipped") if states[s]],
        "seconds": f"{sum(step.seconds for step in result.steps):.1f}",
        "slowest": [s for s in done[:SLOWEST_STEPS] if s.seconds > 0],
    }
