"""How the variants of each runtime are drawn. Pure."""

from __future__ import annotations

from typing import Final

import msgspec

from runtime_adapters.runtimes import REAL


class Mark(msgspec.Struct, frozen=True, kw_only=True):
    """How a runtime's variants are drawn; the shape is for paper and for the colour-blind."""

    shape: str
    glyph: str
    light: str
    """Its colour on light paper."""

    dark: str
    """Its colour on dark paper."""

    number: int = 0
    """Number of the page's CSS variable for its colour."""

    @property
    def colour(self) -> str:
        """The colour that stands for the variable while the plot is drawn."""
        return f"#0505{self.number:02x}"


_IN_TURN: Final = (
    Mark(shape="o", glyph="●", light="#0b62b0", dark="#6db3f7"),
    Mark(shape="s", glyph="■", light="#c14d00", dark="#ff9a57"),
    Mark(shape="^", glyph="▲", light="#0b7f5b", dark="#4fd0a5"),
    Mark(shape="D", glyph="◆", light="#94429a", dark="#da92e0"),
    Mark(shape="v", glyph="▼", light="#8a6400", dark="#e0b94a"),
    Mark(shape="P", glyph="✚", light="#0e7490", dark="#67d3e8"),
    Mark(shape="X", glyph="✖", light="#a3244b", dark="#f58aa8"),
    Mark(shape="*", glyph="★", light="#4d6b00", dark="#a9cf4e"),
    Mark(shape="p", glyph="⬟", light="#5b4bc4", dark="#ada2fb"),
)
"""Each runtime gets the next one. Those that come after the last share `OTHER`."""

MARKS: Final = {
    spec.name: msgspec.structs.replace(mark, number=number)
    for number, (spec, mark) in enumerate(zip(REAL, _IN_TURN, strict=False))
}
OTHER: Final = Mark(shape="h", glyph="⬢", light="#5a6670", dark="#9ca8b2", number=len(MARKS))
ALL_MARKS: Final = (*MARKS.values(), OTHER)


def mark(runtime: str) -> Mark:
    """Return how a runtime's variants are drawn."""
    return MARKS.get(runtime, OTHER)
