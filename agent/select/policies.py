"""The policies by the name that a desired state gives. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from agent.select import adaptive, rules
from agent.select.decisions import Policy

POLICIES: Final[Mapping[str, Policy]] = MappingProxyType(
    {"rules": rules.choose, "adaptive": adaptive.choose}
)
"""The policies by `PolicySpec.kind`."""
