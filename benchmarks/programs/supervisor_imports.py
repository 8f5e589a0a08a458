"""Prints what each import of the supervisor adds to its resident memory, in KiB, as JSON.

It imports nothing else: what it imported itself would cost the supervisor nothing.
"""

import importlib._bootstrap as bootstrap
import json

PAGE_KIB = 4
load = bootstrap._load_unlocked  # type: ignore[attr-defined]  # noqa: SLF001 - all pass here
added: dict[str, int] = {}
inner: list[int] = []


def resident_kib() -> int:
    """Return the resident memory of this process."""
    with open("/proc/self/statm") as file:  # noqa: PTH123 - pathlib is one of the imports
        return int(file.read().split()[1]) * PAGE_KIB


def counted(spec: "bootstrap.ModuleSpec") -> object:
    """Load a module, and count what it adds by itself for its package."""
    before = resident_kib()
    inner.append(0)
    try:
        return load(spec)
    finally:
        whole = resident_kib() - before
        own = whole - inner.pop()
        if inner:
            inner[-1] += whole
        parts = spec.name.split(".")
        ours = parts[0] in ("agent", "runtime_adapters", "telemetry", "wire")
        package = ".".join(parts[:2]) if ours else parts[0].lstrip("_")
        added[package] = added.get(package, 0) + own


start = resident_kib()
bootstrap._load_unlocked = counted  # type: ignore[attr-defined]  # noqa: SLF001
import agent.app.daemon  # noqa: E402, F401 - counted
import agent.cli.main  # noqa: E402, F401 - counted

print(json.dumps({"start": start, "end": resident_kib(), "added": added}))
