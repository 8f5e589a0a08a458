"""Random selectors, and random devices that they may mean."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from hypothesis import strategies as st

from controller.domain.selector_tree import And, Compare, Exists, In, Node, Not, Or

LABELS: Final = ("site", "rack", "not", "label:online", "label:cpu_count")
VALUES: Final = ("berlin", "Berlin", "berlin_1", "berlin-1", "b", "rpi4", "aarch64", "true", "4")
WILDCARDS: Final = ("*", "?", "b*", "B*", "*1", "berlin?1", "*erl*_*", "rpi?")
VERSIONS: Final = ("1", "1.2", "1.2.0", "1.9", "1.10", "v1.2", "1.2.0-rc1", "1.2.0.post1", "2.0+x")
NO_VERSIONS: Final = ("", "latest", "1.2 x", "1.*")
TEXTS: Final = ("id", "profile", "arch", "power_source", "device_state", "online")
LISTS: Final = ("runtimes", "accelerators", "isa_features")
OF_VERSION: Final = ("agent_version", "model.digits", "model.faces")
AMOUNTS: Final = {
    "cpu_count": ("1", "4", "8"),
    "memory_bytes": ("1GiB", "1.5GiB", "1073741824", "4GB"),
    "storage_bytes": ("0", "1MB"),
    "silent_s": ("0s", "90s", "1h30m", "3600"),
}
LISTED: Final = ("onnxruntime", "openvino", "gpu-nvidia", "avx2", "avx512_vnni")
OF_LISTS: Final = (*LISTED, "avx*", "*o*x*", "gpu-?vidia")


def _sets(key: str, values: tuple[str, ...]) -> st.SearchStrategy[Node]:
    chosen = st.lists(st.sampled_from(values), min_size=1, max_size=3).map(tuple)
    return st.builds(In, key=st.just(key), values=chosen)


def _comparisons(key: str, values: tuple[str, ...]) -> st.SearchStrategy[Node]:
    return st.builds(
        Compare,
        key=st.just(key),
        comparison=st.sampled_from(("<", "<=", ">", ">=")),
        value=st.sampled_from(values),
    )


_conditions: Final = st.one_of(
    *(_sets(key, (*VALUES, *WILDCARDS)) for key in (*LABELS, *TEXTS)),
    *(_sets(key, (*VERSIONS, "1.*", "*")) for key in OF_VERSION),
    *(_sets(key, OF_LISTS) for key in LISTS),
    *(_sets(key, values) for key, values in AMOUNTS.items()),
    *(_comparisons(key, values) for key, values in AMOUNTS.items()),
    *(_comparisons(key, VERSIONS) for key in OF_VERSION),
    st.builds(
        Exists, key=st.sampled_from((*LABELS, *TEXTS, *OF_VERSION, *LISTS, *AMOUNTS, "model.no"))
    ),
)


def _several(parts: st.SearchStrategy[Node]) -> st.SearchStrategy[tuple[Node, ...]]:
    return st.lists(parts, min_size=2, max_size=3).map(tuple)


trees: Final[st.SearchStrategy[Node]] = st.recursive(
    _conditions,
    lambda parts: st.one_of(parts.map(Not), _several(parts).map(And), _several(parts).map(Or)),
    max_leaves=8,
)


@dataclass(frozen=True, kw_only=True)
class RandomDevice:
    """What a device of a random fleet has; the name is its place in the fleet."""

    labels: dict[str, str]
    profile_name: str
    architecture: str
    state: str
    agent_version: str
    online: bool
    profile: dict[str, Any]
    runtimes: list[str] | None
    silent_s: float | None
    models: dict[str, str | None]
    """Model to version; None for a package that nobody published."""


_listed = st.lists(st.sampled_from(LISTED), max_size=3, unique=True)
_profiles: Final = st.fixed_dictionaries(
    {},
    optional={
        "power_source": st.sampled_from(("mains", "battery")),
        "cpu_count": st.sampled_from((1, 4, 8)),
        "memory_bytes": st.sampled_from((2**30, 4 * 10**9, 10**17, 10**18, 10**30)),
        "storage_bytes": st.sampled_from((1, 10**6)),
        "runtimes": _listed,
        "accelerators": _listed,
        "isa_features": _listed,
    },
)
devices: Final = st.builds(
    RandomDevice,
    labels=st.dictionaries(
        st.sampled_from(("site", "rack", "not", "online", "cpu_count")), st.sampled_from(VALUES)
    ),
    profile_name=st.sampled_from(("rpi4", "b", "berlin_1")),
    architecture=st.sampled_from(("aarch64", "x86_64")),
    state=st.sampled_from(("enrolled", "quarantined")),
    agent_version=st.sampled_from((*VERSIONS, *NO_VERSIONS)),
    online=st.booleans(),
    profile=_profiles,
    runtimes=st.none() | _listed,
    silent_s=st.none() | st.sampled_from((0.0, 90.0, 90.5, 3600.0, 5400.0)),
    models=st.dictionaries(
        st.sampled_from(("digits", "faces")), st.none() | st.sampled_from(VERSIONS)
    ),
)
fleets: Final = st.lists(devices, min_size=1, max_size=5)
