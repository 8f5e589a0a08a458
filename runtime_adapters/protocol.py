"""What every runtime adapter offers: load a variant, run it, say what it is, close it.

Rules:
- A session takes and gives named, typed tensors. It checks inputs against the variant's declaration
  before a runtime sees them.
- Every exception of a runtime becomes one of the errors of `runtime_adapters.errors`.
- `describe` says where the work really runs; a silent fallback is visible there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol, TypeAlias

import msgspec
from numpy.typing import NDArray

from wire.package.tensors import TensorSpec
from wire.package.variant import VariantInfo

Tensor: TypeAlias = NDArray[Any]
Tensors: TypeAlias = dict[str, Tensor]


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What a session may use."""

    threads: int = 1
    memory_bytes: int | None = None
    """Greatest growth of the process's data segment, in bytes; None for no limit."""


class SessionDescription(msgspec.Struct, frozen=True, kw_only=True):
    """What a session is and where it runs."""

    runtime: str
    version: str
    devices: tuple[str, ...]
    """Where the work really runs, as the runtime names it, such as `CPUExecutionProvider`."""

    kernels: str = ""
    """Whose kernels compute, where the same runtime has several that answer differently."""

    fallback: str = ""
    """Why this is not what the variant promised; empty when it is."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


class Session(Protocol):
    """A loaded variant."""

    def infer(self, inputs: Tensors) -> Tensors:
        """Run the model once.

        Args:
            inputs: One array per declared input, with the declared type and rank.

        Returns:
            One array per declared output.

        Raises:
            InputError: A name, type or shape that the variant does not declare.
            InferenceError: The runtime failed.
        """
        ...

    def describe(self) -> SessionDescription:
        """Say what the session is and where it runs."""
        ...

    def close(self) -> None:
        """Release what the runtime can release; further calls raise InferenceError."""
        ...


class Adapter(Protocol):
    """One runtime."""

    name: str

    def version(self) -> str:
        """Return the runtime's version.

        Raises:
            RuntimeUnavailableError: It is not installed.
        """
        ...

    def load(self, directory: Path, info: VariantInfo, limits: Limits) -> Session:
        """Load a variant.

        Args:
            directory: The variant's directory, whose files have been verified.
            info: The variant's declaration.
            limits: What the session may use.

        Returns:
            A session that is ready.

        Raises:
            RuntimeUnavailableError: The runtime is not installed.
            LoadError: The runtime does not take this model or these options.
        """
        ...
