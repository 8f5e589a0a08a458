"""Reads selectors: a parser by recursive descent. Pure.

```
any       = all { "or" all }
all       = single { ("and" | ",") single }
single    = ("not" | "!") single | "(" any ")" | "group:" NAME | condition
condition = KEY [ ("=" | "==" | "!=") VALUE
                | ("<" | "<=" | ">" | ">=") VALUE
                | ("in" | "notin" | "not" "in") "(" VALUE { "," VALUE } ")" ]
```

Rules:
- A word has a meaning by its place, so labels may be called `and`, `or`, `not` and `in`, as ever.
- A fault names the character where reading ends.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple, NoReturn, cast

from controller.domain.attributes import ATTRIBUTES, Attribute, attribute, how_written, parse_amount
from controller.domain.names import which_there_are
from controller.domain.selector_tree import (
    COMPARISONS,
    GROUP_PREFIX,
    LABEL_PREFIX,
    And,
    Compare,
    Comparison,
    Exists,
    Group,
    In,
    Node,
    Not,
    Or,
    has_wildcard,
)
from controller.domain.version_order import order_key
from controller.errors import SelectorError
from wire.profile import NAME_PATTERN

MAX_SELECTOR_CHARS: Final = 1024
MAX_TERMS: Final = 32
MAX_NESTING: Final = 10
"""Parentheses and negations within each other."""

MAX_STARS: Final = 8
"""Of one value."""

_TOKEN: Final = re.compile(r"[A-Za-z0-9._:/+*?-]+|==|!=|<=|>=|[=!<>(),]")
_KEY: Final = re.compile(r"[A-Za-z0-9._:/-]+")
_SIGNS: Final = frozenset("=!<>(),")
_EQUALS: Final = frozenset({"=", "==", "!="})
_CONDITION: Final = "write a condition such as site=berlin, cpu_count>=4 or group:cameras"
_INSTEAD: Final = {
    "&": "write `and` or a comma",
    "|": "write `or`",
    "'": "write values without quotes",
    '"': "write values without quotes",
    "~": "write wildcards with =, such as site=berlin-*",
}
_SHOWN: Final = 40


class Token(NamedTuple):
    """A word or a sign, and how many characters are before it."""

    text: str
    at: int


def parse_tree(text: str) -> Node | None:
    """Read an expression.

    Args:
        text: As the operator wrote it.

    Returns:
        Its tree; None if it is empty.

    Raises:
        SelectorError: Too long, or not an expression.
    """
    if len(text) > MAX_SELECTOR_CHARS:
        raise SelectorError(
            f"a selector of {len(text)} characters is too long",
            remedy=f"write at most {MAX_SELECTOR_CHARS}; a label or a group can name many devices",
        )
    return _Parser(text).whole() if text.strip() else None


def fault_at(text: str, at: int, what: str, remedy: str) -> SelectorError:
    """Return a fault of an expression at a place.

    Args:
        text: The expression.
        at: How many characters are before the place.
        what: What is wrong there.
        remedy: What to write.
    """
    return SelectorError(
        f"cannot read the selector at character {at + 1}: {what}",
        remedy=remedy,
        expression=text,
        character=at + 1,
    )


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(self._split())
        self._position = 0
        self._terms = 0
        self._nesting = 0

    def whole(self) -> Node:
        node = self._any()
        token = self._here
        if token.text == ")":
            self._fail(token, "no parenthesis is open here", "take this one away, or open one")
        if token.text:
            self._fail(
                token,
                f"{_shown(token)} follows a whole condition",
                "write `and`, `or` or a comma between conditions",
            )
        return node

    def _split(self) -> Iterator[Token]:
        at = 0
        while at < len(self._text):
            if self._text[at].isspace():
                at += 1
                continue
            found = _TOKEN.match(self._text, at)
            if found is None:
                char = self._text[at]
                remedy = _INSTEAD.get(char, "keys and values are of A-Z a-z 0-9 . _ : / -")
                raise fault_at(self._text, at, f"{char!r} has no meaning", remedy)
            yield Token(found[0], at)
            at = found.end()
        yield Token("", len(self._text.rstrip()))

    @property
    def _here(self) -> Token:
        return self._tokens[self._position]

    def _ahead(self, count: int) -> str:
        """Return the text of a later token; empty beyond the end."""
        position = self._position + count
        return self._tokens[position].text if position < len(self._tokens) else ""

    def _take(self) -> Token:
        token = self._here
        self._position = min(self._position + 1, len(self._tokens) - 1)
        return token

    def _fail(self, token: Token, what: str, remedy: str) -> NoReturn:
        raise fault_at(self._text, token.at, what, remedy)

    def _any(self) -> Node:
        parts = [self._all()]
        while self._here.text == "or":
            self._take()
            parts.append(self._all())
        return parts[0] if len(parts) == 1 else Or(tuple(parts))

    def _all(self) -> Node:
        parts = [self._single()]
        while self._here.text in {"and", ","}:
            self._take()
            parts.append(self._single())
        return parts[0] if len(parts) == 1 else And(tuple(parts))

    def _single(self) -> Node:
        token = self._here
        if token.text == "!" or (token.text == "not" and not self._is_key_not()):
            self._take()
            self._enter(token)
            part: Node = Not(self._single())
        elif token.text == "(":
            self._take()
            self._enter(token)
            part = self._any()
            if self._here.text != ")":
                what = "ends" if not self._here.text else f"goes on with {_shown(self._here)}"
                self._fail(
                    self._here,
                    f"the selector {what}, and the parenthesis of character {token.at + 1} is open",
                    "close it with )",
                )
            self._take()
        else:
            return self._condition()
        self._nesting -= 1
        return part

    def _is_key_not(self) -> bool:
        """Tell whether a `not` is the name of a label: what follows it begins no condition."""
        first, second, third = (self._ahead(count) for count in (1, 2, 3))
        return (
            first in {"", ",", ")"}
            or first in _EQUALS
            or first in COMPARISONS
            or (first in {"in", "notin"} and second == "(")
            or (first == "not" and second == "in" and third == "(")
        )

    def _enter(self, token: Token) -> None:
        self._nesting += 1
        if self._nesting > MAX_NESTING:
            self._fail(
                token,
                f"more than {MAX_NESTING} parentheses and negations lie within each other",
                "give a part of it a name with `fleet group set`",
            )

    def _condition(self) -> Node:
        token = self._take()
        self._check_condition(token)
        self._terms += 1
        if self._terms > MAX_TERMS:
            self._fail(
                token,
                f"a selector has at most {MAX_TERMS} conditions",
                "use `in` with a set, or give a part of it a name with `fleet group set`",
            )
        if token.text.startswith(GROUP_PREFIX):
            return self._group(token)
        key = self._key(token)
        sign = self._here.text
        if sign in _EQUALS:
            self._take()
            found = In(key=key, values=(self._value(token, key),), at=token.at)
            return Not(found) if sign == "!=" else found
        if sign in COMPARISONS:
            return self._comparison(token, key)
        words = self._set_words()
        if words:
            for _ in words:
                self._take()
            found = In(key=key, values=self._values(token, key), at=token.at)
            return found if words == ("in",) else Not(found)
        return Exists(key=key, at=token.at)

    def _check_condition(self, token: Token) -> None:
        """Refuse a sign where a condition begins."""
        if not token.text:
            before = self._tokens[-2] if len(self._tokens) > 1 else token
            self._fail(token, f"a condition is missing after {_shown(before)}", _CONDITION)
        if token.text[0] in _SIGNS:
            self._fail(token, f"{_shown(token)} stands where a condition begins", _CONDITION)

    def _set_words(self) -> tuple[str, ...]:
        """Return the words before a set; none if no set follows."""
        words = (self._here.text, self._ahead(1))
        if words == ("not", "in"):
            return words
        return words[:1] if words[0] in {"in", "notin"} else ()

    def _key(self, token: Token) -> str:
        found = _KEY.match(token.text)
        end = found.end() if found else 0
        if end < len(token.text):
            at = Token(token.text[end], token.at + end)
            self._fail(
                at, f"a key cannot have {_shown(at)}", "wildcards stand in values: site=berlin-*"
            )
        plain = token.text.removeprefix(LABEL_PREFIX)
        if not plain:
            self._fail(token, "a label has no name here", "write its name: label:site")
        # Only where the name alone means an attribute it makes a difference.
        return token.text if attribute(plain) is not None else plain

    def _group(self, token: Token) -> Group:
        name = token.text.removeprefix(GROUP_PREFIX)
        if NAME_PATTERN.fullmatch(name) is None:
            self._fail(
                token,
                f"{_shown(token)} names no group",
                "`fleet group list` shows the groups; write one as group:NAME",
            )
        return Group(name=name, at=token.at)

    def _comparison(self, token: Token, key: str) -> Compare:
        sign = self._take()
        what = attribute(key)
        if what is None or what.kind not in {"number", "version"}:
            compared = [name for name, each in ATTRIBUTES.items() if _is_ordered(each)]
            fault = f"{key[:_SHOWN]} is no number and no version that devices report"
            there = which_there_are(key, [*compared, "model.NAME"], what="attributes", none="")
            self._fail(token, fault, f"{sign.text} is for those; {there}")
        value = self._take()
        if what.kind == "number":
            self._check_amount(value, key, what)
        elif order_key(value.text) is None:
            self._fail(value, f"{_shown(value)} is no version", f"write {key}{sign.text}1.4")
        return Compare(
            key=key,
            comparison=cast("Comparison", sign.text),
            value=value.text,
            at=token.at,
        )

    def _value(self, owner: Token, key: str) -> str:
        value = self._take()
        if not value.text or value.text[0] in _SIGNS:
            fault = f"{_shown(value)} is no value" if value.text else "a value is missing"
            self._fail(value, fault, f"write one, such as {owner.text[:_SHOWN]}=x")
        what = attribute(key)
        if what is not None and what.kind == "number":
            self._check_amount(value, key, what)
        if value.text.count("*") > MAX_STARS:
            self._fail(value, f"a value has at most {MAX_STARS} of *", "write a shorter value")
        return value.text

    def _values(self, owner: Token, key: str) -> tuple[str, ...]:
        opening = self._take()
        if opening.text != "(":
            what = f"{_shown(opening)} is no set" if opening.text else "a set is missing"
            self._fail(opening, what, f"write {owner.text[:_SHOWN]} in (x,y)")
        values = [self._value(owner, key)]
        while self._here.text == ",":
            self._take()
            values.append(self._value(owner, key))
        if self._here.text != ")":
            what = f"{_shown(self._here)} in a set" if self._here.text else "the set has no end"
            self._fail(self._here, what, "write values with commas between them, and then )")
        self._take()
        return tuple(values)

    def _check_amount(self, value: Token, key: str, what: Attribute) -> None:
        if has_wildcard(value.text):
            self._fail(value, f"{key} is a number, which has no wildcards", "compare with < or >=")
        if parse_amount(value.text, what.unit) is None:
            fault = f"{_shown(value)} is no number" if value.text else "a number is missing"
            self._fail(value, fault, f"{key} takes {how_written(what.unit)}")


def _is_ordered(what: Attribute) -> bool:
    return what.kind in {"number", "version"}


def _shown(token: Token) -> str:
    return repr(token.text[:_SHOWN])
