"""The request for a build, and the files that it names, with their digests.

Rules:
- A mistake that can be found without reading a file is refused before any file is read.
- The digest of a file covers its bytes, that of a folder its `.npy` files, and that of a function
  the file that holds it.
- The build reads every named file before the first step, so that a typing error costs no time.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import msgspec

from packager.callables import callable_file, is_callable
from packager.errors import BuildError, DataError
from packager.judge.gates import Gates
from packager.judge.metrics import is_own, wanted
from packager.licences import read_licence
from packager.model_files import APART_OVER_BYTES
from packager.plan.states import read_states
from packager.plan.step_names import (
    ANCHORS,
    CALIBRATION,
    EVALUATION,
    METRIC,
    POSTPROCESSING,
    PREPROCESSING,
    SOURCE,
    TRAINING,
    TUNING,
    TUNING_DATABASE,
)
from packager.run.cache import file_sha256
from packager.run.earlier_builds import stored_database
from packager.run.executors import LOCAL
from packager.run.pipeline import Source
from packager.run.process import StepLimits
from packager.samples.declarations import anchors_file
from packager.search.settings import Search
from wire.codec import sha256_hex, to_json
from wire.profile import NAME_PATTERN, DeviceProfile

MAX_NAME: Final = 63


class BuildRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What to build."""

    model: str
    """A file, or a function that returns a model."""

    profiles: tuple[DeviceProfile, ...]
    evaluation: str
    """Samples that no quantizer sees; all figures and gates refer to them. A file, a folder or a
    function. If it is the only set, it is split."""

    calibration: str = ""
    """Samples from which integer variants take their ranges."""

    tuning: str = ""
    """Samples that guide repairs; empty to take a part of the calibration samples."""

    float_only: bool = False
    """Build no integer variants, so that every sample is used for evaluation."""

    preprocessing: Path | None = None
    """A TOML file that says how raw samples become inputs of the model."""

    postprocessing: Path | None = None
    """A TOML file that says how the model's outputs become answers."""

    states: tuple[str, ...] = ()
    """Pairs `INPUT=OUTPUT`: outputs that are fed back as inputs. Samples then are sequences."""

    prune: float = 0.0
    training: str = ""
    apart_over_bytes: int = APART_OVER_BYTES
    """Weights of an ONNX model that is larger stay in a file beside it."""

    output: Path | None = None
    """None for `<name>-package` in the working directory."""

    cache: Path
    name: str = ""
    """Empty for the model's file name."""

    version: str = ""
    """Empty for one computed from the content, so that two packages never have the same version."""

    licence: str = ""
    """Licence of the model, an SPDX expression; empty if it is not to be told."""

    metric: str = "auto"
    gates: Gates = Gates()
    search: Search | None = None
    """How candidates are searched; None to build those that the plan has by its own rule."""

    keep: tuple[str, ...] = ()
    """Variants that are kept even if others beat them."""

    drop_beaten: bool = False
    """Drop what others beat even if it is the fastest variant of its runtime."""

    repair_trials: int = 24
    tune: int = 0
    """Trials per task of auto-tuning; 0 uses only the schedules in the database."""

    tuning_database: Path | None = None
    """None for a database in the cache."""

    min_runs: int = 200
    min_duration_s: float = 0.3
    emulation_s: float = 60.0
    """How long a variant for a foreign processor may answer samples under emulation."""

    profile_layers: bool = False
    """Profile each kept variant by layer, where it was measured."""

    measurements: Path | None = None
    """The JSON report of an earlier build, or figures of the field; they count for files that are
    the same."""

    remeasure: bool = False
    """Measure what variants cost again, although the cache has figures."""

    key: Path | None = None
    """Release key to sign with; None for an unsigned package."""

    force: bool = False
    executor: str = LOCAL
    jobs: int = 0
    """Steps at once on this machine; 0 for as many as it has processors."""

    limits: StepLimits = StepLimits()


def package_name(request: BuildRequest) -> str:
    """Return the package's name: as requested, else from the model's file.

    Args:
        request: What to build.

    Returns:
        A plain name.

    Raises:
        BuildError: The name or version that was asked for is not plain.
    """
    for role, text in (("name", request.name), ("version", request.version)):
        if text and NAME_PATTERN.fullmatch(text) is None:
            raise BuildError(
                f"{role} {text[:80]!r} has characters that are not allowed",
                remedy="use up to 63 lower-case letters, digits, dots, dashes, underscores",
            )
    stem = request.model.rpartition(":")[2] if is_callable(request.model) else ""
    plain = re.sub(r"[^a-z0-9._-]+", "-", (stem or Path(request.model).stem).lower()).strip("._-")
    return request.name or plain[:MAX_NAME] or "model"


def check_request(request: BuildRequest) -> None:
    """Refuse a request whose mistakes can be found without reading a file.

    Args:
        request: What to build.

    Raises:
        BuildError: The request is not valid.
    """
    names, gates = [profile.name for profile in request.profiles], request.gates
    if not names:
        raise BuildError(
            "the build has no profile",
            remedy="add --profile; this command lists the profiles: fleet profile list",
        )
    if len(set(names)) != len(names):
        raise BuildError("the same profile is given twice", remedy="leave one of the two out")
    wanted(request.metric)
    read_states(request.states)
    read_licence(request.licence)
    if request.remeasure and request.measurements is not None:
        raise BuildError(
            "figures cannot be measured again and taken from a report",
            remedy="leave out --remeasure or --measurements",
        )
    if not request.evaluation:
        raise BuildError("the build has no evaluation data", remedy="add --evaluation")
    _check_gates(gates)
    if request.apart_over_bytes < 0:
        raise BuildError(
            f"a limit of {request.apart_over_bytes} bytes is not 0 or above",
            remedy="correct --apart-over",
        )
    if not 0.0 <= request.prune < 1.0:
        raise BuildError(
            f"cannot prune a share of {request.prune} of the channels",
            remedy="give --prune 0 or above and below 1",
        )
    if (request.prune or request.training) and not is_callable(request.model):
        raise BuildError(
            "only a PyTorch model can be pruned", remedy="name a function that returns the module"
        )


def _check_gates(gates: Gates) -> None:
    """Refuse limits that nothing, or everything, could keep.

    Raises:
        BuildError: There is one.
    """
    limits = {
        "--max-size": gates.max_size_bytes,
        "--max-latency": gates.max_latency_ms,
        "--max-memory": gates.max_memory_bytes,
    }
    for option, limit in limits.items():
        if limit is not None and not limit > 0:  # also refuses NaN, which lets everything pass
            raise BuildError(f"a limit of {limit} is not above 0", remedy=f"correct {option}")
    if not 0.0 <= gates.min_retention <= 1.0:
        raise BuildError(
            f"retention {gates.min_retention} is not within 0 to 1",
            remedy="correct --min-retention",
        )
    if gates.max_disagreement is not None and not 0.0 <= gates.max_disagreement <= 1.0:
        raise BuildError(
            f"disagreement {gates.max_disagreement} is not within 0 to 1",
            remedy="correct --max-disagreement",
        )
    if gates.max_variants < 1:
        raise BuildError(
            f"a profile cannot get {gates.max_variants} variants", remedy="correct --max-variants"
        )


def sample_sources(request: BuildRequest) -> tuple[dict[str, Source], dict[str, str]]:
    """Return all sets of samples that were given, and which of them are functions.

    Args:
        request: What to build.

    Returns:
        Sources by the name of the set; the functions' texts by the same names.

    Raises:
        DataError: Two sets are the same data.
        BuildError: One cannot be read.
    """
    texts = {
        CALIBRATION: request.calibration,
        TUNING: request.tuning,
        EVALUATION: request.evaluation,
    }
    given = {name: text for name, text in texts.items() if text}
    sources = {name: _samples_source(text) for name, text in given.items()}
    seen: dict[tuple[str, str], str] = {}
    for name, source in sources.items():
        text = given[name] if is_callable(given[name]) else ""
        other = seen.setdefault((source.sha256, text), name)
        if other != name:
            raise DataError(
                f"{other} and {name} are the same data",
                remedy="give only --evaluation; the build splits it, because it evaluates a "
                "variant on samples that no quantizer used",
            )
    return sources, {name: text for name, text in given.items() if is_callable(text)}


def other_sources(request: BuildRequest) -> dict[str, Source]:
    """Return everything else that the user gave, without the samples, as sources.

    Args:
        request: What to build.

    Returns:
        Sources by the names that steps use.

    Raises:
        BuildError: A file cannot be read, or there is no such function.
    """
    function = is_callable(request.model)
    path = callable_file(request.model) if function else Path(request.model)
    sources = {SOURCE: _file_source(path)}
    if request.preprocessing is not None:
        sources[PREPROCESSING] = _file_source(request.preprocessing)
    if request.postprocessing is not None:
        sources[POSTPROCESSING] = _file_source(request.postprocessing)
        if (anchors := anchors_file(request.postprocessing)) is not None:
            sources[ANCHORS] = _file_source(anchors)
    if is_own(request.metric):
        sources[METRIC] = _file_source(callable_file(request.metric))
    if request.training:
        sources[TRAINING] = _file_source(callable_file(request.training))
    stored = stored_database(tuning_database(request))
    return sources if stored is None else {**sources, TUNING_DATABASE: stored}


def tuning_database(request: BuildRequest) -> Path:
    """Return the folder of the tuning database."""
    return request.tuning_database or request.cache / "tuning"


def _samples_source(text: str) -> Source:
    """Return a set of samples as a source: a file, a folder of files, or a function.

    Raises:
        BuildError: It cannot be read, or there is no such function.
    """
    if is_callable(text):
        return _file_source(callable_file(text))
    path = Path(text)
    return _folder_source(path) if path.is_dir() else _file_source(path)


def _file_source(path: Path) -> Source:
    """Return a file as a source.

    Raises:
        BuildError: It cannot be read, or it is not a regular file.
    """
    if path.exists() and not path.is_file():
        raise BuildError(f"{path} is not a regular file", remedy="name the file itself")
    digest = file_sha256(path)  # first: it says what is wrong with a path that leads nowhere
    return Source(path=path.resolve(), sha256=digest)


def _folder_source(path: Path) -> Source:
    files = sorted(path.glob("*.npy")) or sorted(path.glob("*.npz"))
    if not files:
        raise BuildError(
            f"folder {path.name} holds no .npy or .npz files",
            remedy="write one .npy file for each input, or one .npz file for each shape",
        )
    for file in files:
        if not file.is_file():  # a link to a device would be read without end
            raise BuildError(f"{file} is not a regular file", remedy="take it out of the folder")
    digest = sha256_hex(to_json([(file.name, file_sha256(file)) for file in files]))
    return Source(path=path.resolve(), sha256=digest)
