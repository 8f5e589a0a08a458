"""The version of this software, as it is told to others.

It stands here beside pyproject.toml because to ask the installed metadata costs a device memory;
a test keeps the two equal.
"""

from __future__ import annotations

from typing import Final

VERSION: Final = "0.1.0"
