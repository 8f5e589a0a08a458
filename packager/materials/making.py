"""Finds out how a package was built: what was given, which tools made and judged it, for whom.

Rules:
- Only tools that took part are told, with the versions that the build found installed.
- Licences are those that the metadata of the installed packages declares.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final
from urllib.parse import quote

from packager.callables import is_callable, plain_name
from packager.judge.metrics import is_own
from packager.licences import installed_licence, read_licence
from packager.materials.parameters import ROLES, parameters
from packager.materials.values import Given, Making, Tool
from packager.plan.figures import Imported, ModelFacts
from packager.plan.model_steps import DATA_TOOLS
from packager.plan.recipes import PREPARE, SourceKind
from packager.plan.runtimes import SourceFormat
from packager.plan.step_names import IMPORT, METRIC, SOURCE, TUNING_DATABASE
from packager.plan.values import Candidate, Plan
from packager.request import BuildRequest, package_name
from packager.run.earlier_builds import Measurements
from packager.run.pipeline import Pipeline
from packager.runtimes.table import RUNTIMES
from packager.tools.environments import locked_version
from packager.tools.environments import names as environment_names
from wire.codec import sha256_hex
from wire.package.manifest import Manifest
from wire.profile import DeviceProfile, profile_to_toml
from wire.version import VERSION

EDGEFLEET: Final = "edgefleet"
FIELD: Final = "measurements"
"""The role of figures that devices of the fleet measured."""

_IMPORTERS: Final = {
    "pytorch": ("torch", "onnx"),
    "scikit-learn": ("scikit-learn", "skl2onnx", "onnx"),
}
"""Kind of what a user's function returned to the tools that made ONNX of it."""

_PRUNER: Final = "torch-pruning"


def making_of(
    request: BuildRequest,
    manifest: Manifest,
    *,
    plan: Plan,
    pipeline: Pipeline,
    measurements: Measurements,
) -> Making:
    """Find out how a package was built.

    Args:
        request: What was asked for.
        manifest: What was made.
        plan: The plan that was carried out.
        pipeline: Its results.
        measurements: The figures that were given to the build.

    Returns:
        What is known.
    """
    versions = pipeline.toolchain.tools
    kept = {variant.name: variant.info.runtime for variant in manifest.variants}
    kind = pipeline.result(PREPARE, ModelFacts).kind
    unchanged, source = RUNTIMES.of_source(kind)
    prepared = _preparers(request, pipeline, source)
    made_with = {
        candidate.name: _makers(candidate, prepared, kind, versions)
        for candidate in plan.candidates
        if candidate.name in kept
    }
    used = {tool for tools in made_with.values() for tool in tools}
    for runtime in {*kept.values(), unchanged.name}:
        used |= _known((*RUNTIMES.named(runtime).packages, *DATA_TOOLS), versions)
    functions = _functions(request)
    return Making(
        edgefleet=_tool(EDGEFLEET, VERSION),
        code_sha256=pipeline.toolchain.code,
        machine=pipeline.toolchain.machine,
        given=_given(request, pipeline, measurements, functions),
        tools=tuple(_tool(name, versions[name]) for name in sorted(used)),
        made_with=made_with,
        profiles={profile.name: _shown_sha256(profile) for profile in request.profiles},
        parameters=parameters(request, package_name(request), functions),
        licence=read_licence(request.licence),
    )


def _makers(
    candidate: Candidate, prepared: Iterable[str], kind: SourceKind, versions: Mapping[str, str]
) -> tuple[str, ...]:
    """Return the tools that made the files of a variant, from the user's model on."""
    recipe = RUNTIMES.recipes[candidate.recipe]
    base = RUNTIMES.recipes.get(recipe.base)
    links = RUNTIMES.named(candidate.info.runtime).links
    tools = (
        *prepared,
        *candidate.tools,
        *(base.tools if base is not None and kind in base.sources else ()),
        *((candidate.target.compiler,) if candidate.target is not None and links else ()),
    )
    return tuple(sorted(_known(tools, versions)))


def _preparers(request: BuildRequest, pipeline: Pipeline, source: SourceFormat) -> tuple[str, ...]:
    """Return the tools that made the clean copy of the model."""
    imported: tuple[str, ...] = ()
    if pipeline.has(IMPORT):
        imported = _IMPORTERS[pipeline.result(IMPORT, Imported).kind]
        imported = (*imported, _PRUNER) if request.prune or request.training else imported
    return (*imported, *source.tools)


def _known(tools: Iterable[str], versions: Mapping[str, str]) -> set[str]:
    return {tool for tool in tools if tool in versions}


def _functions(request: BuildRequest) -> dict[str, str]:
    """Return the roles that are functions of the user's, with their plain names."""
    texts = {role: str(getattr(request, field) or "") for field, role in ROLES.items()}
    found = {role: plain_name(text) for role, text in texts.items() if is_callable(text)}
    return found | ({METRIC: plain_name(request.metric)} if is_own(request.metric) else {})


def _given(
    request: BuildRequest,
    pipeline: Pipeline,
    measurements: Measurements,
    functions: Mapping[str, str],
) -> tuple[Given, ...]:
    folders = {role for field, role in ROLES.items() if _is_folder(getattr(request, field))}
    folders.add(TUNING_DATABASE)
    digests = pipeline.source_digests()
    if measurements.field:
        digests[FIELD] = measurements.sha256
    return tuple(
        Given(
            role=role,
            sha256=digests[role],
            form="function" if role in functions else "folder" if role in folders else "file",
            function=functions.get(role, ""),
        )
        for role in sorted(digests, key=lambda role: (not role.startswith(SOURCE), role))
    )


def _is_folder(given: str | Path | None) -> bool:
    return bool(given) and Path(str(given)).is_dir()


def _shown_sha256(profile: DeviceProfile) -> str:
    return sha256_hex(f"{profile_to_toml(profile).rstrip()}\n".encode())


def _tool(name: str, found: str) -> Tool:
    """Return a tool by its name and the version that the build knows it by."""
    apart = name in environment_names()
    kind = "pypi" if (apart or _is_installed(name)) and name != EDGEFLEET else "generic"
    found = locked_version(name) if apart else found
    return Tool(
        name=name,
        version=found,
        purl=f"pkg:{kind}/{quote(name, safe='')}@{quote(found, safe='')}",
        licence=installed_licence(name),
    )


def _is_installed(package: str) -> bool:
    try:
        return bool(version(package))
    except PackageNotFoundError:
        return False
