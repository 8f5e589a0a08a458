"""What can go wrong between a model and a package.

Rules:
- The class says where the fault is: the model, the data, a tool, a gate, the operator's files.
"""

from __future__ import annotations

from wire.errors import FleetError


class PackagerError(FleetError):
    """The packager cannot do what was asked."""

    code = "packager"


class BuildError(PackagerError):
    """A build cannot be carried out."""

    code = "packager.build"


class ModelError(BuildError):
    """The model cannot be read, is not valid, or is of a kind that is not supported."""

    code = "packager.model"


class DataError(BuildError):
    """The samples, or the declarations of inputs and answers, do not fit this model."""

    code = "packager.data"


class StepError(BuildError):
    """A step's process failed, was killed, or ran over its limits."""

    code = "packager.step"


class CacheError(BuildError):
    """The build cache cannot be used: no candidate is at fault, so the build ends."""

    code = "packager.cache"


class DiskFullError(CacheError):
    """The disk of the build cache is full; that is the reason, even if a step reports another."""

    code = "packager.disk_full"


class QualityGateError(BuildError):
    """No candidate passed the gates for some profile."""

    code = "packager.gate"
    answers_no = True


class PackageError(PackagerError):
    """A directory is not a valid package, or cannot be written."""

    code = "packager.package"


class KeyFileError(PackagerError):
    """A signing key's file is missing, readable by others, or not a key."""

    code = "packager.key"


class ProfileError(PackagerError):
    """There is no such profile, or its file is wrong."""

    code = "packager.profile"


class RegistryError(PackagerError):
    """A reference, or what this machine has for a registry, is unusable."""

    code = "packager.registry"


class RegistryUnreachableError(RegistryError):
    """A registry does not answer, broke off, or asks to come back later."""

    code = "packager.registry.unreachable"
    retryable = True


class RegistryRefusedError(RegistryError):
    """A registry wants other credentials, or does not allow this to them."""

    code = "packager.registry.refused"


class RegistryMissingError(RegistryError):
    """A registry has no such repository, tag or content."""

    code = "packager.registry.missing"


class RegistryAnswerError(RegistryError):
    """A registry's answer is not what the specification or the digest demands."""

    code = "packager.registry.answer"


ALL_ERRORS: dict[str, type[PackagerError]] = {
    kind.code: kind
    for kind in (BuildError, ModelError, DataError, StepError, CacheError, DiskFullError)
}
"""Errors that a step reports to the build by their code."""
