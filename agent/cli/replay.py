"""`fleet-agent replay`: reads a trace and variants, runs a policy, writes the result.

Rules:
- No model runs and nothing is served: of a package only the manifest is read, and no signature is
  checked.
- Without variants it takes a made-up set, and the text says so.
- Of a package it takes the variants for the processor of the trace's profile that have figures. The
  text names those that it leaves out.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Final

import msgspec

from agent.errors import ReplayError
from agent.replay.run import Latencies, Replay, replay
from agent.replay.trace_file import SHIPPED, load_trace, read_file
from agent.replay.traces import Trace
from agent.replay.variants import checked
from agent.select.decisions import Candidate, candidate
from agent.select.policies import POLICIES
from wire.codec import MAX_JSON_BYTES, from_json, to_builtins, to_pretty_json
from wire.errors import WireFormatError
from wire.package.manifest import MANIFEST_FILE, Manifest, manifest_from_bytes
from wire.policy import PolicySpec
from wire.policy_file import checked_policy, read_policy

EXAMPLE: Final = SHIPPED / "example_variants.json"


class ListedVariant(Candidate, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A variant in a JSON file, where a key that is not known is misspelt."""


class VariantList(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Variants in a JSON file."""

    source: str
    """Where the figures come from."""

    variants: tuple[ListedVariant, ...]


def report(
    name: str,
    *,
    policy: str,
    package: Path | None = None,
    variants: Path | None = None,
    pinned: str | None = None,
    deadline_ms: float | None = None,
    as_json: bool = False,
) -> str:
    """Replay a policy over a trace and describe the result.

    Args:
        name: Path of a trace, or the name of a shipped one.
        policy: Name of a policy, or path of a TOML or JSON file with its keys.
        package: Directory of the package whose variants are taken.
        variants: JSON file of variants, in place of a package.
        pinned: A variant that always serves, whatever the policy decides.
        deadline_ms: Deadline in place of the trace's own.
        as_json: Write JSON, with every tick, instead of a table.

    Returns:
        The text, ending with a newline.

    Raises:
        ReplayError: A file cannot be read, or the policy cannot be replayed with it.
        WireFormatError: A file is not what it should be.
    """
    if deadline_ms is not None and not 0.0 < deadline_ms < math.inf:
        raise ReplayError(
            f"--deadline-ms: {deadline_ms:g} is not a positive number",
            remedy="give the milliseconds within which an answer is useful",
        )
    trace = load_trace(name)
    source, candidates = _candidates(trace, package, variants)
    spec = _spec(policy)
    done = replay(trace, candidates, spec, pinned=pinned, deadline_ms=deadline_ms)
    if as_json:
        header = to_builtins(trace.header)
        return to_pretty_json({"trace": header, "variants": source, "replay": done}).decode()
    table = _table(trace, source, done, _deadline(trace, spec, deadline_ms))
    return "\n".join([*table, *_switches(done)]) + "\n"


def _spec(policy: str) -> PolicySpec:
    if policy in POLICIES:
        return msgspec.convert({"kind": policy}, PolicySpec)
    remedy = f"name a TOML or JSON file, or one of {', '.join(sorted(POLICIES))}"
    data = read_file(Path(policy), remedy, MAX_JSON_BYTES)
    try:
        return checked_policy(read_policy(data, policy))
    except WireFormatError as exc:
        raise ReplayError(f"{policy}: {exc.message}", remedy=exc.remedy) from exc


def _candidates(
    trace: Trace, package: Path | None, variants: Path | None
) -> tuple[str, tuple[Candidate, ...]]:
    if package is not None:
        data = read_file(package / MANIFEST_FILE, "name the directory of a package", MAX_JSON_BYTES)
        return _of_package(manifest_from_bytes(data), trace.header.profile)
    path, remedy = variants or EXAMPLE, "name a JSON file of variants"
    try:
        listed = from_json(read_file(path, remedy, MAX_JSON_BYTES), VariantList)
        checked(listed.variants)
    except WireFormatError as exc:
        raise ReplayError(f"{path}: {exc.message}", remedy=remedy) from exc
    except ReplayError as exc:
        raise ReplayError(f"{path}: {exc.message}", remedy=exc.remedy) from exc
    return listed.source, listed.variants


def _of_package(manifest: Manifest, profile: str) -> tuple[str, tuple[Candidate, ...]]:
    """Return the variants of a package for a profile; for another one, those for this processor.

    Raises:
        ReplayError: None of them has figures.
    """
    release, machine = f"{manifest.name}:{manifest.version}", os.uname().machine
    chosen = [v for v in manifest.variants if profile in v.info.profiles] or [
        v for v in manifest.variants if machine in (v.info.requirements.architectures or (machine,))
    ]
    kept = [v for v in chosen if v.info.performance is not None]
    if not kept:
        raise ReplayError(
            f"no variant of {release} for {profile} or this processor has figures",
            remedy="build the package on such a processor, or give the figures with --variants",
        )
    left_out = ", ".join(v.name for v in manifest.variants if v not in kept)
    note = f"; for other processors, or not measured: {left_out}" if left_out else ""
    return release + note, tuple(map(candidate, kept))


def _deadline(trace: Trace, spec: PolicySpec, instead_ms: float | None) -> str:
    """Say by which deadline answers count, and whether the policy goes by another one."""
    counted_ms = trace.header.deadline_ms if instead_ms is None else instead_ms
    origin = "the trace" if instead_ms is None else "--deadline-ms"
    text = f"deadline of {origin}: {counted_ms:g} ms"
    own_ms = spec.aim.deadline_ms
    if spec.kind != "adaptive" or own_ms is None or own_ms == counted_ms:
        return text
    return f"{text}; the policy's own is {own_ms:g} ms: --deadline-ms {own_ms:g} counts by that one"


def _table(trace: Trace, source: str, done: Replay, deadline: str) -> list[str]:
    header, totals = trace.header, done.totals
    served = ", ".join(f"{name} {share:g} s" for name, share in totals.served_s.items() if share)
    kept = totals.mean_retention
    rows = (
        ("trace", f"{done.trace} ({header.origin}, {header.profile}): {header.source}"),
        ("variants", source),
        ("policy", done.policy),
        ("duration", f"{totals.duration_s:g} s in {len(done.steps)} ticks"),
        ("requests", f"{totals.requests:.0f}, {totals.refused:.0f} refused"),
        ("missed", f"{totals.missed:.0f} ({totals.miss_ratio:.2%}); {deadline}"),
        *_latency(totals.latencies),
        ("retention", "unknown" if kept is None else f"{kept:.4f} of the reference's quality"),
        ("worth", _share(totals.worth, totals.requests)),
        ("energy", f"{totals.energy_j:.0f} J"),
        ("switches", f"{totals.switches}, {totals.flaps} of them back within a minute"),
        ("hottest", f"{totals.hottest_c:.1f} C, {totals.severe_s:g} s severe"),
        ("memory", f"{totals.short_of_memory_s:g} s short"),
        ("off", f"{totals.off_s:g} s"),
        ("served", served or "nothing"),
    )
    return [f"{name:<10}{text}" for name, text in rows]


def _latency(found: Latencies | None) -> list[tuple[str, str]]:
    if found is None:
        return []
    most = f"{found.p95_ms:.1f} ms in 95 % of the answers, {found.p99_ms:.1f} ms in 99 %"
    return [("latency", f"{found.p50_ms:.1f} ms median, {most}")]


def _share(worth: float | None, requests: float) -> str:
    if worth is None or not requests:
        return "unknown"
    return f"{worth / requests:.4f}: answers in time, below the severe heat, times their retention"


def _switches(done: Replay) -> list[str]:
    lines = []
    for switch in done.switches:
        change = f"{switch.before or 'nothing'} -> {switch.after or 'nothing'}"
        lines.append(f"{switch.at_s:>9.1f} s  {change}: {switch.reason}")
        lines += [f"{'':>13}not {name}: {why}" for name, why in sorted(switch.verdicts.items())]
    return lines
