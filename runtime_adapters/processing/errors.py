"""Errors in a variant's declaration of pre- and post-processing."""

from __future__ import annotations

from runtime_adapters.errors import AdapterError


class DeclarationError(AdapterError):
    """A declaration does not fit the input or output that it is for."""

    code = "adapter.declaration"
