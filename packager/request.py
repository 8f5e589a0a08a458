"""What is to be built, as a user asks for it.

Rules:
- What can be seen to be wrong without reading a file is refused here.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import msgspec

from packager.errors import BuildError
from packager.judge.gates import Gates
from packager.judge.metrics import CHOICES
from packager.run.executors import LOCAL
from packager.run.inputs import is_callable
from packager.run.process import StepLimits
from wire.profile import NAME_PATTERN, DeviceProfile

MAX_NAME: Final = 63


class BuildRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be built."""

    model: str
    """A file, or a function that returns a model."""

    profiles: tuple[DeviceProfile, ...]
    evaluation: str
    """Samples that no quantizer sees: every figure and gate is about them. A file, a folder or a
    function; as the only set it is split."""

    calibration: str = ""
    """Samples from which integer variants take their ranges."""

    tuning: str = ""
    """Samples that steer repairs; empty to split them off the calibration samples."""

    float_only: bool = False
    """No integer variants, so that every sample judges."""

    preprocessing: Path | None = None
    """A TOML file that says how raw samples become what the model takes."""

    postprocessing: Path | None = None
    """A TOML file that says how the model's outputs become answers."""

    prune: float = 0.0
    training: str = ""
    output: Path | None = None
    """None for `<name>-package` in the working directory."""

    cache: Path
    name: str = ""
    """Empty for the model's file name."""

    version: str = ""
    """Empty for one that follows from the content, so that a version is never two packages."""

    metric: str = "auto"
    gates: Gates = Gates()
    keep: tuple[str, ...] = ()
    """Variants that are kept though others beat them."""

    repair_trials: int = 24
    tune: int = 0
    """Trials per task of auto-tuning; 0 takes what the database has."""

    tuning_database: Path | None = None
    """None for one in the cache."""

    min_runs: int = 200
    min_duration_s: float = 0.3
    emulation_s: float = 60.0
    """How long a variant for a foreign processor may answer samples under emulation."""

    measurements: Path | None = None
    """The JSON report of an earlier build, whose figures hold for files that are the same."""

    key: Path | None = None
    """Release key to sign with; None for an unsigned package."""

    force: bool = False
    executor: str = LOCAL
    jobs: int = 0
    """Steps at once on this machine; 0 for as many as it has processors."""

    limits: StepLimits = StepLimits()


def package_name(request: BuildRequest) -> str:
    """Return the package's name: as asked, else from the model's file.

    Args:
        request: What is to be built.

    Returns:
        A plain name.

    Raises:
        BuildError: The name or version that was asked for is not plain.
    """
    for role, text in (("name", request.name), ("version", request.version)):
        if text and NAME_PATTERN.fullmatch(text) is None:
            raise BuildError(
                f"{role} {text[:80]!r} is not plain",
                remedy="use up to 63 lower-case letters, digits, dots, dashes, underscores",
            )
    stem = request.model.rpartition(":")[2] if is_callable(request.model) else ""
    plain = re.sub(r"[^a-z0-9._-]+", "-", (stem or Path(request.model).stem).lower()).strip("._-")
    return request.name or plain[:MAX_NAME] or "model"


def check_request(request: BuildRequest) -> None:
    """Refuse what can be seen to be wrong before any file is read.

    Args:
        request: What is to be built.

    Raises:
        BuildError: It cannot be built so.
    """
    names, gates = [profile.name for profile in request.profiles], request.gates
    if not names:
        raise BuildError("no profile was named", remedy="add --profile; see: fleet profile list")
    if len(set(names)) != len(names):
        raise BuildError("a profile was named twice")
    if request.metric not in CHOICES and not is_callable(request.metric):
        raise BuildError(
            f"there is no metric {request.metric!r}",
            remedy=f"use {', '.join(CHOICES)}, or a function as module:callable",
        )
    if not request.evaluation:
        raise BuildError("no evaluation data were named", remedy="add --evaluation")
    for limit in (gates.max_size_bytes, gates.max_latency_ms, gates.max_memory_bytes):
        if limit is not None and not limit > 0:  # NaN is not, and would let everything pass
            raise BuildError(f"a limit of {limit} is not above 0")
    if not 0.0 <= gates.min_retention <= 1.0:
        raise BuildError(f"retention {gates.min_retention} is not within 0 to 1")
    if not 0.0 <= request.prune < 1.0:
        raise BuildError(f"a share of {request.prune} of the channels cannot be pruned")
    if (request.prune or request.training) and not is_callable(request.model):
        raise BuildError(
            "only a PyTorch model can be pruned", remedy="name a function that returns the module"
        )
