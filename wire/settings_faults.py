"""Says in the words of who writes a file of settings what is wrong in it. Pure."""

from __future__ import annotations

import re
from typing import Any, Literal, get_args, get_origin

import msgspec

_DECODER = re.compile(r"not a valid \w+: ")
_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(.+)`")
_MISSING_FIELD = re.compile(r"Object missing required field `(.+)`")
_WRONG_KIND = re.compile(r"Expected `(.+)`, got `(.+)`")
_WRONG_CHOICE = re.compile(r"Invalid (?:enum )?value ('.*')")
_INDEX = re.compile(r"\[\d+\]")
_KINDS = {
    "int": "a whole number", "float": "a number", "bool": "true or false", "str": "a text",
    "array": "a list", "object": "a table", "null": "nothing",
}  # fmt: skip
"""Types as TOML's readers name them."""


def plain_fault(fault: str, kind: type[msgspec.Struct]) -> str:
    """Say what is wrong in a file.

    Args:
        fault: What the decoder said, such as `Expected `int`, got `str` - at `$.broker.port``.
        kind: What the file should hold.

    Returns:
        Such as `broker.port must be a whole number, not a text`.
    """
    text, _, place = fault.removeprefix(_prefix(fault)).partition(" - at ")
    path = place.strip("`").removeprefix("$").removeprefix(".")
    if named := _UNKNOWN_FIELD.fullmatch(text):
        return no_such_setting(".".join(filter(None, (path, named[1]))), kind)
    if named := _MISSING_FIELD.fullmatch(text):
        return f"the setting {'.'.join(filter(None, (path, named[1])))} is missing"
    if path and (kinds := _WRONG_KIND.fullmatch(text)):
        wanted = " or ".join(_KINDS.get(kind, kind) for kind in kinds[1].split(" | "))
        return f"{path} must be {wanted}, not {_KINDS.get(kinds[2], kinds[2])}"
    if (chosen := _WRONG_CHOICE.fullmatch(text)) and (choices := _choices(kind, path)):
        return f"{path} must be one of {', '.join(choices)}, not {chosen[1]}"
    return f"{path}: {text}" if path else text


def no_such_setting(name: str, kind: type[msgspec.Struct]) -> str:
    """Say that there is no setting of a name, and which name is near to it.

    Args:
        name: What the file names, with the tables in which it stands: `broker.prot`.
        kind: What the file should hold.

    Returns:
        The fault, in one line.
    """
    from difflib import get_close_matches  # a device that has no such fault never loads it

    table, _, last = name.rpartition(".")
    near = get_close_matches(last, _names(kind, table.split(".") if table else []), n=1)
    hint = f" (did you mean {'.'.join(filter(None, (table, near[0])))}?)" if near else ""
    return f"there is no setting {name}{hint}"


def _prefix(fault: str) -> str:
    said = _DECODER.match(fault)
    return said[0] if said else ""


def _names(kind: Any, table: list[str]) -> list[str]:  # noqa: ANN401 - a type of any form
    """Return the names of the settings in a table; none where there is no such table."""
    if not table:
        return [field.encode_name for field in msgspec.structs.fields(kind)]
    for inner in _within(_field(kind, table[0])):
        return _names(inner, table[1:])
    return []


def _choices(kind: Any, path: str) -> list[str]:  # noqa: ANN401 - a type of any form
    """Return the values that a setting may have; none if it is no choice."""
    *table, last = path.split(".")
    tables = [kind]
    for name in table:
        tables = _within(_field(tables[0], name)) if tables else []
    tags = [each.__struct_config__ for each in tables]
    if names := [str(tag.tag) for tag in tags if tag.tag_field == last]:
        return names
    of_field = _field(tables[0], last) if tables else None
    for each in (of_field, *get_args(of_field)):
        if get_origin(each) is Literal:
            return [str(value) for value in get_args(each)]
    return []


def _field(kind: Any, name: str) -> Any:  # noqa: ANN401 - a type of any form
    """Return the type of a setting, by its name, which may have an index."""
    fields = {field.encode_name: field.type for field in msgspec.structs.fields(kind)}
    return fields.get(_INDEX.sub("", name))


def _within(of_field: Any) -> list[Any]:  # noqa: ANN401 - a type of any form
    """Return the tables that a setting may be, or may be a list of."""
    if isinstance(of_field, type) and issubclass(of_field, msgspec.Struct):
        return [of_field]
    return [inner for each in get_args(of_field) for inner in _within(each)]
