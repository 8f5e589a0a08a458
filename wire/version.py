"""The version of this software, as other programs see it.

It is here as well as in pyproject.toml, because reading the installed metadata costs a device
memory; a test keeps the two equal.
"""

from __future__ import annotations

from typing import Final

VERSION: Final = "0.1.0"
