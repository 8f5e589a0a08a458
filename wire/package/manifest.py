"""The package manifest: ONNX Runtime's model-package layout with our data under our own key.

The layout is ONNX Runtime's (`manifest.json` with `components`, `variants`, `executor_info`,
`shared_assets`; schema 1.0, portable). A package has one component, `model`, declared inline.
A variant that ONNX Runtime can run by itself has `executor_info["ort"]`; our own data on a variant
is under `executor_info["edgefleet"]`, as that layout provides.

Rules:
- Paths are relative POSIX paths without `..`; anything else is refused (`wire.package.paths`).
- Our data on a variant is that of `wire.package.variant`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from wire.codec import convert, from_json, to_builtins, to_pretty_json
from wire.errors import WireFormatError
from wire.package.paths import safe_path
from wire.package.variant import Variant, VariantInfo
from wire.profile import NAME_PATTERN, DeviceProfile

MANIFEST_FILE = "manifest.json"
COMPONENT = "model"
EXECUTOR = "edgefleet"
LAYOUT_SCHEMA_VERSION = "1.0"
MAX_VARIANTS = 256


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
