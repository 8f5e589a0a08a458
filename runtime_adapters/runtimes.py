"""The table of runtimes: what both the device and the build machine must know about each.

A new runtime is a row here, a folder with its adapter beside this module, and, where models are
built for it, a folder in `packager.runtimes`. Nothing else knows a runtime by name.

Rules:
- Only facts: nothing here imports a runtime or looks at the machine.
- A runtime's name is that of its folder, of its extra in `pyproject.toml`, and what a manifest and
  a device profile call it.
"""

from __future__ import annotations

from typing import Final

import msgspec

from wire.profile import Architecture


class RuntimeSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A runtime."""

    name: str
    """As in `VariantInfo.runtime`."""

    title: str
    """As its makers write it."""

    packages: tuple[str, ...] = ()
    """Python packages, each of which brings the runtime; the extra installs the first. Empty where
    a variant needs only the C library."""

    modules: tuple[str, ...]
    """Python modules by which a device finds out that it has the runtime: one is enough. Empty
    where the agent has all that is needed."""

    size_mb: int = 0
    """Installed size of the first package in megabytes, without NumPy."""

    libc: str = ""
    """The C library that variants are linked with, where they bring their own runtime."""

    architectures: tuple[Architecture, ...]
    """Processors that it can be installed on."""

    threads: str
    """What `Limits.threads` means to it."""

    devices: str
    """Where it can run a model."""

    for_tests: bool = False
    """It runs no real model: no profile may name it."""


ONNXRUNTIME: Final = RuntimeSpec(
    name="onnxruntime",
    title="ONNX Runtime",
    packages=("onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino"),
    modules=("onnxruntime",),
    size_mb=68,
    architectures=("x86_64", "aarch64"),
    threads="all threads of a session, the calling one included",
    devices="CPU; another execution provider by the option `provider`",
)

RUNTIMES: Final = (
    ONNXRUNTIME,
    RuntimeSpec(
        name="openvino",
        title="OpenVINO",
        packages=("openvino",),
        modules=("openvino",),
        size_mb=180,
        architectures=("x86_64", "aarch64"),
        threads="threads of one stream",
        devices="CPU; GPU or NPU by the option `device`",
    ),
    RuntimeSpec(
        name="litert",
        title="LiteRT",
        packages=("ai-edge-litert", "tflite-runtime"),
        modules=("ai_edge_litert", "tflite_runtime"),
        size_mb=62,
        architectures=("x86_64", "aarch64", "armv7l"),
        threads="threads of a session",
        devices="CPU, with the XNNPACK delegate unless the option `delegate` says `none`",
    ),
    RuntimeSpec(
        name="tvm",
        title="TVM",
        modules=("numpy",),  # beside it, a variant needs the C library alone
        libc="glibc",
        architectures=("x86_64", "aarch64", "armv7l", "riscv64"),
        threads="no effect: the code runs in the calling thread",
        devices="CPU",
    ),
    RuntimeSpec(
        name="iree",
        title="IREE",
        packages=("iree-base-runtime",),
        modules=("iree.runtime",),
        size_mb=45,
        architectures=("x86_64", "aarch64"),
        threads="threads of a call; with one, the calling thread",
        devices="CPU",
    ),
    RuntimeSpec(
        name="null",
        title="none",
        modules=(),
        architectures=("x86_64", "aarch64", "armv7l", "riscv64"),
        threads="no effect: it works in the calling thread",
        devices="none",
        for_tests=True,
    ),
)

BY_NAME: Final = {spec.name: spec for spec in RUNTIMES}
REAL: Final = tuple(spec for spec in RUNTIMES if not spec.for_tests)
"""Those that a profile may name and that models are built for."""
