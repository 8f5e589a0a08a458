"""`fleet build --measure-on`: builds candidates, lets devices measure them, and builds with that.

Rules:
- The candidates are a package of their own, signed and published like any: it has all that passes
  the gates of quality, whatever the building machine says of its latency.
- Both builds share the cache, so the second one makes nothing anew.
- Before the first build the controller is asked whether any device could be asked.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import typer

from controller.cli.connecting import connect
from controller.cli.errors import ArgumentError
from controller.cli.measure import (
    check_askable,
    figures_of,
    measured,
    read_limit_s,
    write_figures,
)
from controller.cli.measure_view import is_measured
from controller.cli.publishing import publish_package
from controller.measure_schemas import MeasurementRequest
from wire.console.output import remark

if TYPE_CHECKING:
    from packager.request import BuildRequest


@contextmanager
def measured_on(
    context: typer.Context,
    request: BuildRequest,
    selector: str | None,
    timeout: str,
    build: Callable[[BuildRequest], object],
) -> Iterator[BuildRequest]:
    """Let devices measure what a build makes, and return the build with their figures.

    Args:
        context: Says where the controller is.
        request: What to build.
        selector: The devices; None to measure nowhere.
        timeout: How long to wait for them, as typed.
        build: Carries a build out.

    Yields:
        The request, with a file of figures that is there in the `with` block.

    Raises:
        ArgumentError: The build cannot be measured, or no device has measured it.
        FleetError: The build, the controller or the upload fails.
    """
    if selector is None:
        yield request
        return
    limit_s = read_limit_s(timeout, option="--measure-timeout")
    _check(request)
    with connect(context) as api:
        check_askable(api, selector)  # before the work of a build, and a release that stays
    with tempfile.TemporaryDirectory(prefix="edgefleet-measure-") as directory:
        package, figures = Path(directory) / "candidates", Path(directory) / "figures.json"
        gates = msgspec.structs.replace(request.gates, max_memory_bytes=None, untimed=True)
        build(msgspec.structs.replace(request, output=package, version="", gates=gates))
        remark("the candidates are built; lent devices measure them")
        release = publish_package(context, package, _keys(request))
        with connect(context) as api:
            found = measured(
                api, MeasurementRequest(release=release, selector=selector, limit_s=limit_s)
            )
            told = figures_of(api, only=found.release)
        if not told:
            raise ArgumentError(
                "no device has measured the candidates",
                remedy=f"see why: fleet measure show {found.id}",
            )
        if not any(is_measured(part) for part in found.devices):
            remark("no device has measured now: the figures are those of before")
        write_figures(told, figures)
        yield msgspec.structs.replace(request, measurements=figures, remeasure=False)


def _keys(request: BuildRequest) -> list[str] | None:
    """Return the key that signs the build: it lists the candidates, too."""
    return None if request.key is None else [str(request.key)]


def _check(request: BuildRequest) -> None:
    """Refuse a build that no device can measure.

    Raises:
        ArgumentError: An option does not go with it.
    """
    if request.key is None:
        raise ArgumentError(
            "--measure-on: devices take only signed packages", remedy="add --key FILE"
        )
    if request.measurements is not None:
        raise ArgumentError(
            "--measure-on and --measurements both give figures", remedy="leave one out"
        )
    if request.search is not None:
        raise ArgumentError(
            "--measure-on: a search asks no devices", remedy="leave out --measure-on or --search"
        )
    from packager.package.reservation import reserved
    from packager.request import package_name

    # What cannot be written at the end is refused before devices work for it.
    with reserved(request.output or Path(f"{package_name(request)}-package"), force=request.force):
        pass
