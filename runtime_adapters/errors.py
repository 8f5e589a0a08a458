"""What can go wrong in a runtime."""

from __future__ import annotations

from wire.errors import FleetError


class AdapterError(FleetError):
    """A runtime failed, or it was given something wrong."""

    code = "adapter"


class RuntimeUnavailableError(AdapterError):
    """The runtime is not installed on this machine, or there is no adapter of that name."""

    code = "adapter.unavailable"


class LoadError(AdapterError):
    """The runtime does not take this model or these options."""

    code = "adapter.load"


class InputError(AdapterError):
    """An input has a name, type or shape that the variant does not declare."""

    code = "adapter.input"


class InferenceError(AdapterError):
    """The runtime failed while it ran the model."""

    code = "adapter.inference"
