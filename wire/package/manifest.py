"""The package manifest: ONNX Runtime's model-package layout with our data under our own key.

The layout is ONNX Runtime's (`manifest.json` with `components`, `variants`, `executor_info`,
`shared_assets`; schema 1.0, portable). A package has one component, `model`, declared inline.
A variant that ONNX Runtime can run by itself has `executor_info["ort"]`; our own data on a variant
is under `executor_info["edgefleet"]`, as that layout provides.

Rules:
- Paths are relative POSIX paths without `..`; anything else is refused.
- Tensor types are spelled as in the Open Inference Protocol (`FP32`, `INT64`, `BYTES`).
- A figure that was not measured is None.
- A field that was added after version 1 is unset where it is not used, so that manifests without it
  keep their bytes.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any, Final, Literal

import msgspec

from wire.codec import convert, from_json, to_builtins, to_pretty_json
from wire.errors import WireFormatError
from wire.package.distribution import Distribution
from wire.package.processing import Postprocessing, Quantization
from wire.profile import NAME_PATTERN, DeviceProfile

MANIFEST_FILE = "manifest.json"
COMPONENT = "model"
EXECUTOR = "edgefleet"
LAYOUT_SCHEMA_VERSION = "1.0"
VARIANT_SCHEMA_VERSION = 1
MAX_VARIANTS = 256
MIB: Final = 1024**2
LATENCY_TOLERANCE: Final = 0.05
"""Smaller differences of a latency are noise, or too small to keep a variant for."""

Datatype = Literal[
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64",
    "FP16", "FP32", "FP64", "BYTES",
]  # fmt: skip
"""Tensor types of the Open Inference Protocol."""


class TensorSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One named input or output; -1 in the shape is a dimension that may vary."""

    name: str
    datatype: Datatype
    shape: tuple[int, ...]


class Preprocessing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The steps that turn a raw sample into the tensor that an input accepts.

    Images are resized first. Each value then becomes `(raw * scale - mean) / std`, with the
    channel's `mean` and `std`, in float32. The axes are moved from `source_layout` to `layout`, and
    the result is quantised.
    """

    source_datatype: Datatype
    """Type of the raw sample, such as UINT8 for pixels."""

    source_layout: str = ""
    """Letters of the raw axes, `N` first and `C` for channels, such as `NHWC`; empty if kept."""

    layout: str = ""
    """The same letters in the order of the input's axes, such as `NCHW`; `C` may be added if raw
    samples are grey."""

    scale: float = 1.0
    mean: tuple[float, ...] = ()
    """One value per channel, or one for all; empty for 0."""

    std: tuple[float, ...] = ()
    """One value per channel, or one for all; empty for 1."""

    resize: Literal["bilinear", "nearest"] | msgspec.UnsetType = msgspec.UNSET
    """How raw images of any height and width (`H` and `W`) are brought to the size of the input,
    with pixel centres at (index + 0.5), without smoothing. Unset where they have that size."""

    quantization: Quantization | msgspec.UnsetType = msgspec.UNSET
    """Set for an input of integers that stand for real numbers."""


class Requirements(msgspec.Struct, frozen=True, kw_only=True):
    """What a device must have to run a variant."""

    architectures: tuple[str, ...] = ()
    """As `uname -m`; empty means any."""

    isa_features: tuple[str, ...] = ()
    memory_bytes: int = 0
    """Greatest resident size of the worker process, in bytes, as measured."""


class Certainty(msgspec.Struct, frozen=True, kw_only=True):
    """How far chance may have moved a variant's figures: bounds of what more samples would give."""

    retention_low: float | None
    retention_high: float | None
    """None where the samples give no bound."""

    agreement_low: float | None
    agreement_high: float | None
    """None where a sample has no one top answer."""

    confidence: float
    """Probability with which each bound holds. All lower bounds of a build hold together with a
    probability of 0.95, whichever variant was chosen."""

    compared: int
    """Candidates that the variants were chosen from, without those that compute what the reference
    does."""

    samples_needed: int
    """About how many samples would show that the variant passes the gates of quality, if its
    figures stay as they are; 0 where the samples of the build show it."""


class Drift(msgspec.Struct, frozen=True, kw_only=True):
    """How far a variant with states of its own moves away from the reference in long sequences.

    An error is the root mean square of the difference at a step, over all sequences, divided by
    that of the reference's answers; of several outputs, states among them, the greatest counts.
    """

    sequences: int
    steps: int
    """Of each sequence."""

    start: float
    middle: float
    end: float
    """Errors of the first, the middle and the last tenth of the steps."""

    worst: float
    worst_step: int
    """The step with the greatest error, counted from 0."""


class FurtherAccuracy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How one output of a variant compares with the float reference, by a metric of its own."""

    output: str
    metric: str
    """As in `Accuracy`."""

    labels: str = ""
    """The array of the samples that is the truth; empty where the reference's answers are."""

    value: float
    reference: float
    retention: float
    """As in `Accuracy`."""

    worst_error: float
    """Greatest absolute difference of any element of this output."""

    samples: int
    certainty: Certainty | msgspec.UnsetType = msgspec.UNSET
    """Its agreement is that of the main metric, and None here."""


class ShapeAccuracy(msgspec.Struct, frozen=True, kw_only=True):
    """How a variant compares with the float reference on the samples of one shape."""

    sizes: dict[str, tuple[int, ...]]
    """The shape of one sample, by input."""

    samples: int
    value: float
    reference: float
    retention: float
    worst_error: float


class Accuracy(msgspec.Struct, frozen=True, kw_only=True):
    """How a variant compares with the float reference on the evaluation data."""

    metric: str
    """Such as `top1`. For most metrics a larger value is better; a smaller one for errors (`mae`,
    `rmse`, `wer`, `cer`) and `perplexity`."""

    value: float
    reference: float
    retention: float
    """Share of the reference's quality that is kept; larger is better for every metric. It is
    `value / reference` where larger values are better."""

    agreement: float | None
    """Share of samples whose top answer equals the reference's; None where the metric reads an
    output that has no top answer."""

    sqnr_db: float | None
    """Signal to quantization noise over all outputs; None when there was no noise."""

    worst_error: float
    """Greatest absolute difference of any output element."""

    samples: int
    """Samples that judged it; sequences, if the variant has states."""

    certainty: Certainty | msgspec.UnsetType = msgspec.UNSET
    drift: Drift | msgspec.UnsetType = msgspec.UNSET
    """Set if the variant has states."""

    further: tuple[FurtherAccuracy, ...] | msgspec.UnsetType = msgspec.UNSET
    """Figures of other outputs, each with a gate of its own; set if the build had such metrics."""

    shapes: tuple[ShapeAccuracy, ...] | msgspec.UnsetType = msgspec.UNSET
    """Figures of the samples of each shape; set if the samples have several."""


class Relative(msgspec.Struct, frozen=True, kw_only=True):
    """How slow a variant is beside the unchanged model, both measured in turn in one process."""

    reference: str
    """The runtime that served the unchanged model."""

    ratio: float
    """Median, over the pairs, of the variant's latency divided by the unchanged model's."""

    low: float
    high: float
    """The range in which the ratio lies with a probability of at least 0.95."""

    pairs: int


class Performance(msgspec.Struct, frozen=True, kw_only=True):
    """What a variant needed on the machine that built the package, for one sample at a time."""

    latency_p50_ms: float
    latency_p95_ms: float
    load_ms: float
    first_inference_ms: float
    peak_memory_bytes: int
    """`VmHWM` of the fresh process that measured it."""

    runs: int
    latency_iqr_ms: float | None = None
    """Interquartile range: the width of the range of the middle half of the latencies."""

    threads: int
    machine: str
    """`uname -m` and the processor's name: figures hold for this machine only."""

    relative: Relative | msgspec.UnsetType = msgspec.UNSET
    """Unset where there were too few pairs."""

    background_cpus: float | msgspec.UnsetType = msgspec.UNSET
    """How many processors other processes kept busy meanwhile, on average."""

    energy_j: float | msgspec.UnsetType = msgspec.UNSET
    """Joules that one inference added to what the processors took without it; unset where no
    counter told."""


class FieldFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What a variant needed on devices of the fleet, which went on with their work meanwhile."""

    performance: Performance
    """Each figure is the middle one of the devices that measured the variant. `background_cpus`
    says how busy they were beside."""

    devices: int
    """How many devices of the profile measured it."""

    at_s: float
    """When the controller got the newest of their answers, in seconds since 1970."""


class Tolerance(msgspec.Struct, frozen=True, kw_only=True):
    """How far an output may be from the reference: absolute + relative * |reference|."""

    absolute: float
    relative: float


class Golden(msgspec.Struct, frozen=True, kw_only=True):
    """Inputs with the reference's outputs; a variant must reproduce them before it serves."""

    asset: str
    """`sha256:<hex>` of the shared asset that holds `input.<name>.npy`, `output.<name>.npy`."""

    samples: int
    tolerances: dict[str, Tolerance]
    """One for each output name, derived from this variant's measured error."""

    min_agreement: float = 1.0
    """Share of samples whose top answer must equal the reference's; 0.0 where outputs are not
    scores of classes."""

    kernels: str | msgspec.UnsetType = msgspec.UNSET
    """Whose kernels made the error that `tolerances` were derived from, as the adapter names them;
    for a runtime that has several."""

    other_tolerances: dict[str, Tolerance] | msgspec.UnsetType = msgspec.UNSET
    """One for each output name, derived from the error of the runtime's other kernels. A device
    where not `kernels` compute may be as far off as either allows."""


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


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """A package: its name, version and variants."""

    name: str
    version: str
    variants: tuple[Variant, ...]
    metadata: dict[str, Any] = {}
    """`additional_metadata`: provenance of the build as a whole."""

    def variant(self, name: str) -> Variant:
        """Return a variant by name.

        Raises:
            KeyError: There is none of that name.
        """
        for variant in self.variants:
            if variant.name == name:
                return variant
        raise KeyError(name)

    def fitting(self, profile: DeviceProfile) -> tuple[Variant, ...]:
        """Return the variants for a kind of device, in manifest order.

        If the package was built for this profile, the method returns the variants that the packager
        kept for it. Any other profile gets all variants that can run there.

        Args:
            profile: The kind of device.

        Returns:
            The variants, with the figures of that kind of device where the package has them; empty
            when none can run.
        """
        found = tuple(variant.on(profile.name) for variant in self.variants)
        able = tuple(v for v in found if v.misfit(profile) is None)
        if any(profile.name in v.info.profiles for v in self.variants):
            return tuple(v for v in able if profile.name in v.info.profiles)
        return able

    def misfits(self, profile: DeviceProfile) -> dict[str, str]:
        """Return why variants are not for a kind of device.

        Args:
            profile: The kind of device.

        Returns:
            The reason of each variant that `fitting` leaves out, by its name, in manifest order.
        """
        kept = {variant.name for variant in self.fitting(profile)}
        return {
            variant.name: variant.on(profile.name).misfit(profile) or "is not for this profile"
            for variant in self.variants
            if variant.name not in kept
        }


class _LayoutVariant(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    variant_directory: str | None = None
    ep: str | None = None
    device: str | None = None
    compatibility_string: str | None = None
    executor_info: dict[str, Any] = {}
    additional_metadata: Any = None


class _LayoutComponent(
    msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    component_name: str | None = None
    variants: dict[str, _LayoutVariant]
    additional_metadata: Any = None


class _Layout(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    schema_version: str
    package_name: str = ""
    package_version: str = ""
    description: str = ""
    layout: str = "portable"
    components: dict[str, _LayoutComponent]
    shared_assets: dict[str, str] = {}
    additional_metadata: dict[str, Any] = {}


def manifest_to_bytes(manifest: Manifest) -> bytes:
    """Write a manifest in ONNX Runtime's model-package layout; equal manifests, equal bytes."""
    variants = {
        v.name: _LayoutVariant(
            variant_directory=v.directory,
            ep="CPUExecutionProvider" if v.ort is not None else None,
            executor_info={EXECUTOR: to_builtins(v.info)} | ({"ort": v.ort} if v.ort else {}),
        )
        for v in manifest.variants
    }
    return to_pretty_json(
        _Layout(
            schema_version=LAYOUT_SCHEMA_VERSION,
            package_name=manifest.name,
            package_version=manifest.version,
            components={COMPONENT: _LayoutComponent(variants=variants)},
            additional_metadata=manifest.metadata,
        )
    )


def manifest_from_bytes(data: bytes) -> Manifest:
    """Read a manifest.

    Args:
        data: The bytes of `manifest.json`, whose digest has been checked.

    Returns:
        The manifest; variants without our data (no `edgefleet` key) are left out.

    Raises:
        WireFormatError: Not the layout, an unsafe path, a bad name, or no variant of ours.
    """
    layout = from_json(data, _Layout)
    if layout.schema_version.split(".")[0] != "1" or layout.layout != "portable":
        raise WireFormatError(
            f"manifest: schema {layout.schema_version} with layout {layout.layout} is not supported"
        )
    component = layout.components.get(COMPONENT)
    if component is None or len(component.variants) > MAX_VARIANTS:
        raise WireFormatError(
            f"manifest: needs a component {COMPONENT!r} of at most {MAX_VARIANTS} variants"
        )
    variants = tuple(
        _variant(name, body)
        for name, body in component.variants.items()
        if EXECUTOR in body.executor_info
    )
    if not variants:
        raise WireFormatError(f"manifest: no variant has executor_info[{EXECUTOR!r}]")
    return Manifest(
        name=_plain_name(layout.package_name),
        version=_plain_name(layout.package_version),
        variants=variants,
        metadata=layout.additional_metadata,
    )


def safe_path(path: str) -> str:
    """Return a package path if it is relative, plain and stays inside the package.

    Args:
        path: As written in a document.

    Returns:
        The same path.

    Raises:
        WireFormatError: Absolute, empty, with `.`/`..` or empty parts, a backslash or control
            characters.
    """
    parts = path.split("/")
    pure = PurePosixPath(path)
    bad = (
        pure.is_absolute()
        or any(part in {"", ".", ".."} for part in parts)
        or "\\" in path
        or any(ord(char) < ord(" ") for char in path)
        or len(path) > 255  # noqa: PLR2004 - NAME_MAX of the usual file systems
    )
    if bad:
        raise WireFormatError(f"unsafe path in the package: {path!r}")
    return path


def _variant(name: str, body: _LayoutVariant) -> Variant:
    info = convert(body.executor_info[EXECUTOR], VariantInfo)
    ort = body.executor_info.get("ort")
    safe_path(info.model_file)
    return Variant(
        name=_plain_name(name),
        directory=safe_path(body.variant_directory or name),
        info=info,
        ort=ort if isinstance(ort, dict) else None,
    )


def _plain_name(name: str) -> str:
    if NAME_PATTERN.fullmatch(name) is None:
        raise WireFormatError(f"manifest: {name!r} is not a plain name")
    return name
