"""Which variants of a package a replay takes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec
import pytest

from agent.cli.replay import report
from agent.errors import ReplayError
from agent.replay.trace_file import load_trace
from tests.simulators.packages import variant
from wire.package.manifest import MANIFEST_FILE, Manifest, manifest_to_bytes
from wire.package.variant import Requirements, Variant

TRACE = "hot-afternoon"
HERE = os.uname().machine
ELSEWHERE = "riscv64"


def made(
    name: str, *architectures: str, profiles: tuple[str, ...] = (), measured: bool = True
) -> Variant:
    plain = variant(name)
    info = msgspec.structs.replace(
        plain.info,
        requirements=Requirements(architectures=architectures, memory_bytes=2**20),
        profiles=profiles,
        performance=plain.info.performance if measured else None,
    )
    return msgspec.structs.replace(plain, info=info)


def replayed(directory: Path, *variants: Variant) -> tuple[str, set[str]]:
    """Replay over a package; return what is said of its variants, and which were taken."""
    manifest = Manifest(name="digits", version="1", variants=variants)
    (directory / MANIFEST_FILE).write_bytes(manifest_to_bytes(manifest))
    shown = json.loads(report(TRACE, policy="rules", package=directory, as_json=True))
    return shown["variants"], set(shown["replay"]["totals"]["served_s"])


def test_variants_for_other_processors_are_left_out(tmp_path: Path) -> None:
    told, taken = replayed(
        tmp_path,
        made("portable"),
        made("own", HERE),
        made("foreign", ELSEWHERE),
        made("foreign-unmeasured", ELSEWHERE, measured=False),
    )
    assert taken == {"portable", "own"}
    assert told == ("digits:1; for other processors, or not measured: foreign, foreign-unmeasured")


def test_of_the_variants_for_its_profile_it_takes_those_with_figures(tmp_path: Path) -> None:
    profile = (load_trace(TRACE).header.profile,)
    told, taken = replayed(
        tmp_path,
        made("portable", profiles=profile),
        made("compiled", ELSEWHERE, profiles=profile, measured=False),
        made("for-others"),
    )
    assert taken == {"portable"}
    assert told.endswith(": compiled, for-others")


def test_a_package_without_figures_is_refused_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(ReplayError, match=r"no variant of digits:1 .* has figures") as caught:
        replayed(tmp_path, made("compiled", ELSEWHERE, measured=False))
    assert "--variants" in caught.value.remedy
