"""Selectors as conditions of SQL.

Rules:
- A condition means the devices that `controller.domain.selector_tree.holds` means, on SQLite as on
  PostgreSQL; upper and lower case differ.
- No condition is unknown (NULL): the negation of one would be unknown as well.
- Versions are compared here, and not by the database, which does not know their order: there are
  few different ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import (
    Boolean,
    ColumnElement,
    Double,
    Select,
    String,
    and_,
    case,
    cast,
    exists,
    false,
    func,
    literal,
    not_,
    or_,
    select,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import Session
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from controller.domain.attributes import (
    MAX_NUMBER_DIGITS,
    MODEL_PREFIX,
    Attribute,
    attribute,
    parse_amount,
)
from controller.domain.selector_tree import (
    COMPARISONS,
    And,
    Compare,
    Exists,
    Group,
    In,
    Node,
    Not,
    Or,
    has_wildcard,
    version_holds,
)
from controller.domain.selectors import Selector, label_of
from controller.store.device_tables import DeviceLabelRow, DeviceRow
from controller.store.model_tables import DeviceModelRow
from controller.store.release_tables import ReleaseRow

_ESCAPE = "!"
"""No value has it."""

_PROFILE = DeviceRow.profile


def _text_of_profile(name: str) -> ColumnElement[Any]:
    found: ColumnElement[Any] = _PROFILE[name].as_string()
    return found


def _number_of_profile(name: str) -> ColumnElement[Any]:
    text = _text_of_profile(name)
    number = cast(text, Double)
    # A number that is too long for the type would fail the query, and so the whole fleet. SQLite
    # shortens such ones, so they are compared as well.
    return case(
        (func.length(text) <= MAX_NUMBER_DIGITS, case((number < 10.0**MAX_NUMBER_DIGITS, number)))
    )


_TEXTS: Mapping[str, ColumnElement[Any]] = {
    "id": DeviceRow.id.expression,
    "profile": DeviceRow.profile_name.expression,
    "arch": DeviceRow.architecture.expression,
    "agent_version": DeviceRow.agent_version.expression,
    "power_source": _text_of_profile("power_source"),
    "device_state": DeviceRow.state.expression,
    "online": case((DeviceRow.online, "true"), else_="false"),
}
_NUMBERS: Mapping[str, ColumnElement[Any]] = {
    name: _number_of_profile(name) for name in ("cpu_count", "memory_bytes", "storage_bytes")
}
_PROFILE_LISTS = ("accelerators", "isa_features")


class _Like(FunctionElement[bool]):
    """Whether a text is like a pattern; of the two patterns each database reads its own."""

    type = Boolean()
    inherit_cache = True


class _Elements(FunctionElement[str]):
    """The texts of a list in JSON, each a row with the column `value`."""

    type = String()
    inherit_cache = True


@compiles(_Like)
def _like(element: _Like, compiler: SQLCompiler, **options: Any) -> str:  # noqa: ANN401 - SQLAlchemy's
    text, like, _ = element.clauses
    escape = f"ESCAPE '{_ESCAPE}'"
    return (
        f"({compiler.process(text, **options)} LIKE {compiler.process(like, **options)} {escape})"
    )


@compiles(_Like, "sqlite")
def _glob(element: _Like, compiler: SQLCompiler, **options: Any) -> str:  # noqa: ANN401 - SQLAlchemy's
    text, _, pattern = element.clauses  # its LIKE does not tell capitals apart
    return f"({compiler.process(text, **options)} GLOB {compiler.process(pattern, **options)})"


@compiles(_Elements)
def _json_elements(element: _Elements, compiler: SQLCompiler, **options: Any) -> str:  # noqa: ANN401 - SQLAlchemy's
    return f"json_array_elements_text({compiler.process(element.clauses, **options)})"


@compiles(_Elements, "sqlite")
def _json_each(element: _Elements, compiler: SQLCompiler, **options: Any) -> str:  # noqa: ANN401 - SQLAlchemy's
    return f"json_each({compiler.process(element.clauses, **options)})"


def conditions(session: Session, selector: Selector) -> list[ColumnElement[bool]]:
    """Return a selector as conditions on `DeviceRow`.

    Args:
        session: The transaction, in which versions are looked up.
        selector: The selector; no group is left in it.
    """
    if selector.tree is None:
        return []
    return [_Conditions(session, selector.at_s).of(selector.tree)]


class _Conditions:
    def __init__(self, session: Session, at_s: float) -> None:
        self._session = session
        self._at_s = at_s

    def of(self, node: Node) -> ColumnElement[bool]:
        match node:
            case Not(part):
                return not_(self.of(part))
            case And(parts):
                return and_(*map(self.of, parts))
            case Or(parts):
                return or_(*map(self.of, parts))
            case Group(name=name):
                raise TypeError(f"group {name} is not resolved")
            case _:
                return self._condition(node)

    def _condition(self, node: In | Exists | Compare) -> ColumnElement[bool]:
        label = label_of(node.key)
        if label is not None:
            return _of_label(node, label)
        what = attribute(node.key)
        if what is None:
            raise TypeError(f"{node.key} is neither label nor attribute")
        if what.kind == "list":
            return _of_list(node)
        if what.kind == "number":
            return self._of_number(node, what)
        if node.key.startswith(MODEL_PREFIX):
            return self._of_model(node, node.key.removeprefix(MODEL_PREFIX))
        text = _TEXTS[node.key]
        values = select(DeviceRow.agent_version).distinct()
        return and_(text.is_not(None), self._of_text(node, text, values))

    def _of_number(self, node: In | Exists | Compare, what: Attribute) -> ColumnElement[bool]:
        if node.key == "silent_s":
            number: ColumnElement[Any] = literal(self._at_s, Double) - DeviceRow.last_seen_at_s
        else:
            number = _NUMBERS[node.key]
        match node:
            case Exists():
                return number.is_not(None)
            case In(values=values):
                amounts = [parse_amount(value, what.unit) for value in values]
                return and_(number.is_not(None), number.in_(amounts))
            case Compare(comparison=comparison, value=value):
                bound = literal(parse_amount(value, what.unit), Double)
                return and_(number.is_not(None), COMPARISONS[comparison](number, bound))

    def _of_model(self, node: In | Exists | Compare, model: str) -> ColumnElement[bool]:
        version = func.coalesce(
            select(ReleaseRow.version)
            .where(ReleaseRow.digest == DeviceModelRow.release)
            .correlate(DeviceModelRow)
            .scalar_subquery(),
            DeviceModelRow.release,
        )
        known = select(ReleaseRow.version).where(ReleaseRow.name == model)
        return exists().where(
            DeviceModelRow.device == DeviceRow.id,
            DeviceModelRow.model == model,
            DeviceModelRow.release.is_not(None),
            self._of_text(node, version, known),
        )

    def _of_text(
        self, node: In | Exists | Compare, text: ColumnElement[Any], versions: Select[str]
    ) -> ColumnElement[bool]:
        """Return the condition on a text that is not NULL."""
        match node:
            case Exists():
                return text.is_not(None)
            case In(values=values):
                return _is_among(text, values)
            case Compare(comparison=comparison, value=value):
                found = [
                    version
                    for version in self._session.scalars(versions)
                    if version_holds(comparison, version, value)
                ]
                return text.in_(found)


def _of_label(node: In | Exists | Compare, label: str) -> ColumnElement[bool]:
    found = exists().where(DeviceLabelRow.device == DeviceRow.id, DeviceLabelRow.key == label)
    match node:
        case Exists():
            return found
        case In(values=values):
            return found.where(_is_among(DeviceLabelRow.value.expression, values))
        case Compare():
            return false()


def _of_list(node: In | Exists | Compare) -> ColumnElement[bool]:
    if node.key in _PROFILE_LISTS:
        return _has_element(node, _PROFILE[node.key])
    own = DeviceRow.runtimes
    has_own, of_profile = own.is_not(None), _PROFILE["runtimes"]
    return or_(
        and_(has_own, _has_element(node, own.expression)),
        and_(not_(has_own), _has_element(node, of_profile)),
    )


def _has_element(node: In | Exists | Compare, listed: ColumnElement[Any]) -> ColumnElement[bool]:
    element = _Elements(listed).table_valued("value")
    value: ColumnElement[Any] = element.c.value
    among = _is_among(value, node.values) if isinstance(node, In) else value.is_not(None)
    if isinstance(node, Compare):
        return false()
    return select(literal(1)).select_from(element).where(value.is_not(None), among).exists()


def _is_among(text: ColumnElement[Any], values: Sequence[str]) -> ColumnElement[bool]:
    """Return the condition that a text is one of some values, which may have wildcards."""
    plain = [value for value in values if not has_wildcard(value)]
    found: list[ColumnElement[bool]] = [text.in_(plain)] if plain or not values else []
    found += [
        _Like(text, literal(_like_pattern(value)), literal(value))
        for value in values
        if has_wildcard(value)
    ]
    return found[0] if len(found) == 1 else or_(*found)


def _like_pattern(value: str) -> str:
    for special in (_ESCAPE, "%", "_"):
        value = value.replace(special, _ESCAPE + special)
    return value.replace("*", "%").replace("?", "_")
