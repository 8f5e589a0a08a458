"""Record which of ONNX's backend tests pass through the adapters.

Rules:
- A case that the runtime alone passes and the adapter neither passes nor leaves out for a reason
  is a fault of the adapter: it is named, and the exit status is 1.
- Nothing in a list depends on the machine but what its runtime can compute.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import sys
import tempfile
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path

from runtime_adapters import registry
from tests.contract.onnx_backend.cases import EXPANDED, LISTS, Cases, Outcome, Prepare
from tests.contract.onnx_backend.ways import WAYS


def main() -> int:
    """Record the lists, and say what the adapters lose."""
    parser = argparse.ArgumentParser(prog="python -m tests.contract.onnx_backend")
    parser.add_argument("--record", nargs="*", choices=WAYS, required=True)
    lost = sum(_record(runtime) for runtime in parser.parse_args().record or WAYS)
    return 1 if lost else 0


def _record(runtime: str) -> int:
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        place = Path(name)
        prepared = WAYS[runtime].prepared(place, stack, WAYS[runtime].most_each)
        ours, operators = _run(prepared.adapter, place)
        if prepared.alone is not None:
            tried = [name for name, outcome in ours.items() if not outcome.left_out]
            alone, _ = _run(prepared.alone, place, tried if runtime == "litert" else None)
            bare = {name for name, outcome in alone.items() if outcome.passed}
        else:
            # What compiles and loads must answer rightly: there is no other way to run it.
            bare = {name for name, outcome in ours.items() if not outcome.left_out}
    lines = _lines(runtime, ours, bare, operators, alone=prepared.alone is not None)
    (LISTS / f"{runtime}.txt").write_text("\n".join(lines) + "\n", encoding="ascii")
    lost = _lost(ours, bare)
    for name in lost:
        sys.stdout.write(f"the adapter for {runtime} loses {name}: {ours[name].reason}\n")
    sys.stdout.write("".join(f"{line}\n" for line in lines if line.startswith("#")))
    return len(lost)


def _lines(
    runtime: str,
    ours: dict[str, Outcome],
    bare: set[str],
    operators: dict[str, str],
    *,
    alone: bool,
) -> list[str]:
    left_out = {name: outcome.reason for name, outcome in ours.items() if outcome.left_out}
    passed = [name for name, outcome in ours.items() if outcome.passed]
    reasons = collections.Counter(left_out.values())
    return [
        f"# ONNX's backend tests that pass through the adapter for {runtime}: operator, case.",
        f"# {runtime} {registry.get(runtime).version()}, onnx {version('onnx')}, {len(ours)} cases",
        f"# pass: {len(passed)}",
        f"# {'pass without the adapter' if alone else 'compile'}: {len(bare)}",
        f"# of those, left out here: {len(bare & left_out.keys())}",
        f"# of those, lost by the adapter: {len(_lost(ours, bare))}",
        *(f"# left out, {reason}: {count}" for reason, count in sorted(reasons.items())),
        *sorted(f"{_operator(name, operators)} {name}" for name in passed),
    ]


def _lost(ours: dict[str, Outcome], bare: set[str]) -> list[str]:
    return sorted(name for name in bare if not ours[name].passed and not ours[name].left_out)


def _run(
    prepare: Prepare, scratch: Path, names: Iterable[str] | None = None
) -> tuple[dict[str, Outcome], dict[str, str]]:
    cases = Cases(prepare, scratch)
    outcomes: dict[str, Outcome] = {}
    operators: dict[str, str] = {}
    for name in cases.names if names is None else names:
        outcomes[name] = cases.run(name)
        operators[name] = cases.operator()
    return outcomes, operators


def _operator(name: str, operators: dict[str, str]) -> str:
    return operators.get(EXPANDED.sub("", name), operators[name])


if __name__ == "__main__":
    sys.exit(main())
