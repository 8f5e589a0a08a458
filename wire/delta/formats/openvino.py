"""Where the tensors of an OpenVINO model are in its `.bin`, which the `.xml` beside it says. Pure.

Rules:
- The text is searched for constants and not parsed as XML, so no entity and no nesting costs
  memory.
- Each search is in a text of bounded length, so its time grows with the file, not with the square
  of its size.
- What does not look as OpenVINO writes it is left out.

Source:
    docs.openvino.ai, "Operation Set Specification", Const; IR version 11.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from wire.delta.places import Place

if TYPE_CHECKING:
    from wire.delta.layout import Element

_ELEMENTS: Final[dict[str, Element]] = {
    "f32": "f4", "f16": "f2", "bf16": "f2", "f64": "f8", "f8e4m3": "f1", "f8e5m2": "f1",
    "i8": "i1", "u8": "i1", "boolean": "i1", "i16": "i2", "u16": "i2", "i32": "i4", "u32": "i4",
    "i64": "i8", "u64": "i8", "i4": "n1", "u4": "n1", "nf4": "n1",
}  # fmt: skip
_LAYER: Final = re.compile(rb"<layer ([^<>]{0,4000})>\s*<data ([^<>]{0,4000})/>")
_CONST: Final = re.compile(rb'\bname="([^"]{0,1000})" type="Const"')
_ATTRIBUTE: Final = re.compile(rb'\b(element_type|shape|offset|size)="([^"]{0,400})"')
_NUMBER: Final = re.compile(r"[0-9]{1,18}")


def places(xml: memoryview) -> list[Place]:
    """Return the tensors of a model.

    Args:
        xml: The content of its `.xml`.

    Returns:
        Their places in its `.bin`.
    """
    found: list[Place] = []
    for layer in _LAYER.finditer(xml):
        const = _CONST.search(layer[1])
        if const is None:
            continue
        texts = {
            key.decode(): value.decode(errors="replace")
            for key, value in _ATTRIBUTE.findall(layer[2])
        }
        element = _ELEMENTS.get(texts.get("element_type", ""))
        numbers = [texts.get(key, "") for key in ("offset", "size")]
        if element is not None and all(map(_NUMBER.fullmatch, numbers)):
            shape = tuple(map(int, _NUMBER.findall(texts.get("shape", ""))))
            name = const[1].decode(errors="replace")
            found.append(Place(name, element, shape, *map(int, numbers)))
    return found
