"""A variant of a model: its directory, what the build knows of it, and which devices it fits.

Rules:
- A figure that was not measured is None.
- A field that was added after version 1 is unset where it is not used, so that manifests without it
  keep their bytes.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from wire.package.accuracy import Accuracy
from wire.package.distribution import Distribution
from wire.package.golden import Golden
from wire.package.performance import FieldFigures, Performance
from wire.package.processing import Postprocessing, Preprocessing
from wire.package.tensors import TensorSpec
from wire.profile import DeviceProfile

VARIANT_SCHEMA_VERSION = 1
MIB: Final = 1024**2


class Requirements(msgspec.Struct, frozen=True, kw_only=True):
    """What a device must have to run a variant."""

    architectures: tuple[str, ...] = ()
    """As `uname -m`; empty means any."""

    isa_features: tuple[str, ...] = ()
    memory_bytes: int = 0
    """Greatest resident size of the worker process, in bytes, as measured."""


class VariantInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Our data on a variant: the content of `executor_info["edgefleet"]`."""

    schema_version: int = VARIANT_SCHEMA_VERSION
    runtime: str
    """Name of the adapter that runs it."""

    precision: str
    model_file: str
    """Relative to the variant's directory."""

    options: dict[str, str] = {}
    """Options of that runtime, such as an execution precision."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    requirements: Requirements = Requirements()
    profiles: tuple[str, ...] = ()
    """Profiles for which the packager kept this variant."""

    size_bytes: int
    accuracy: Accuracy | None = None
    performance: Performance | None = None
    golden: Golden | None = None
    preprocessing: dict[str, Preprocessing] = {}
    """The preprocessing of each input; empty where samples come prepared."""

    postprocessing: dict[str, Postprocessing] | msgspec.UnsetType = msgspec.UNSET
    """The postprocessing of each output."""

    provenance: dict[str, str] = {}
    """Steps and tool versions that made it."""

    states: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    """Input to the output that an application feeds back as that input at the next step; it starts
    with zeros, if the application knows nothing better."""

    files_sha256: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    """SHA-256 of each file, by its path in the variant's directory, as the figures were measured.
    Who signs the manifest signs which files the figures are of."""

    field: dict[str, FieldFigures] | msgspec.UnsetType = msgspec.UNSET
    """Profile to what the variant needed on devices of that profile; set by a build that was given
    such figures. On these devices they stand in place of `performance`."""

    distributions: tuple[Distribution, ...] | msgspec.UnsetType = msgspec.UNSET
    """How the evaluation's samples and the variant's answers to them are distributed; unset where
    there were too few samples, or where they are sequences or boxes."""


class Variant(msgspec.Struct, frozen=True, kw_only=True):
    """A variant of the model: a directory and our data on it."""

    name: str
    directory: str
    info: VariantInfo
    ort: dict[str, Any] | None = None
    """`executor_info["ort"]`, where ONNX Runtime can run the variant by itself."""

    def on(self, profile: str) -> Variant:
        """Return the variant with the figures of a kind of device.

        Args:
            profile: Name of the kind of device.

        Returns:
            The same variant where no figures from the field are of that profile. Otherwise those
            are its figures, and the memory that it needs, if the build could not measure it.
        """
        found = (self.info.field or {}).get(profile)
        if found is None:
            return self
        needs = self.info.requirements
        if not needs.memory_bytes:
            peak_bytes = -(-found.performance.peak_memory_bytes // MIB) * MIB
            needs = msgspec.structs.replace(needs, memory_bytes=peak_bytes)
        info = msgspec.structs.replace(self.info, performance=found.performance, requirements=needs)
        return msgspec.structs.replace(self, info=info)

    def misfit(self, profile: DeviceProfile) -> str | None:
        """Return why this variant cannot run on a kind of device.

        Args:
            profile: The kind of device.

        Returns:
            The first reason, or None when it fits.
        """
        needs = self.info.requirements
        missing = sorted(set(needs.isa_features) - set(profile.isa_features))
        if needs.architectures and profile.architecture not in needs.architectures:
            return (
                f"needs {' or '.join(needs.architectures)}, but the device is "
                f"{profile.architecture}"
            )
        if self.info.runtime not in profile.runtimes:
            return f"needs the runtime {self.info.runtime}"
        if missing:
            return f"needs {', '.join(missing)}"
        if needs.memory_bytes > profile.memory_bytes:
            return (
                f"needs {needs.memory_bytes} bytes of memory, but the device has "
                f"{profile.memory_bytes}"
            )
        return None
