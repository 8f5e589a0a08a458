"""The rules of alerts as a person writes them: the tables `[[alert]]` of a file. Pure.

Rules:
- What would have no effect is a fault: a key that is misspelt, a bound that no value can pass.
- A fault is one line that names the rule and the key.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from telemetry.errors import AlertRuleError, QueryError
from telemetry.limits import is_name
from telemetry.metrics import known
from telemetry.server.alerts.rules import (
    KINDS,
    Absence,
    AnyRule,
    BurnRate,
    Change,
    OfMetric,
    Rule,
    Threshold,
)
from telemetry.server.alerts.value_ranges import bound_faults, can_be_negative
from telemetry.server.query_text import parse_conditions
from telemetry.server.question import MINUTE, QUANTILE, STATISTICS, check_statistics
from wire.codec import convert, from_toml
from wire.durations import DAY_S, parse_duration_s
from wire.errors import WireFormatError
from wire.profile import NAME_PATTERN
from wire.settings_faults import no_such_setting, plain_fault

MAX_RULES: Final = 200
MAX_FILE_BYTES: Final = 512 * 1024
MAX_SUMMARY_CHARS: Final = 500
MAX_FAULT_CHARS: Final = 400
MAX_WORDS: Final = 8
MAX_WORD_CHARS: Final = 300
MIN_WINDOW_S: Final = 60.0
MAX_WINDOW_S: Final = 31 * DAY_S
MAX_FOR_S: Final = 7 * DAY_S
DURATIONS: Final = ("window", "offset", "lookback", "long", "short")
REMEDY: Final = "docs/alerts.md lists the keys and their limits"


class RulesFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of rules."""

    alert: list[dict[str, Any]] = []


def read_rules(data: bytes) -> dict[str, Any]:
    """Read a file of rules.

    Args:
        data: TOML.

    Returns:
        What it holds; `checked_rules` says whether it can be.

    Raises:
        AlertRuleError: It is not TOML, or too long.
    """
    try:
        return from_toml(data, dict, limit_bytes=MAX_FILE_BYTES)
    except WireFormatError as exc:
        fault = exc.message.removeprefix("not a valid dict: ")
        fault = f"not TOML: {fault[:1].lower()}{fault[1:]}" if fault != exc.message else fault
        raise AlertRuleError(fault, remedy="write tables [[alert]] in TOML") from exc


def checked_rules(values: Mapping[str, Any]) -> tuple[AnyRule, ...]:
    """Return the rules that a person wrote.

    Args:
        values: The content of a file.

    Returns:
        The rules, in its order.

    Raises:
        AlertRuleError: They cannot be; the text names the rule and the key.
    """
    for key in values:
        if key != "alert":
            raise AlertRuleError(_line(no_such_setting(key[:64], RulesFile)), remedy=REMEDY)
    if "alert" not in values:
        raise AlertRuleError(
            "there is no table [[alert]]", remedy="write one, or alert = [] for no rules at all"
        )
    tables = values["alert"]
    if not isinstance(tables, list) or not all(isinstance(each, dict) for each in tables):
        raise AlertRuleError("alert is not a list of tables", remedy="write each as [[alert]]")
    if len(tables) > MAX_RULES:
        raise AlertRuleError(
            f"{len(tables)} alerts are more than the limit of {MAX_RULES}",
            remedy="let one rule judge many groups, with by",
        )
    rules = [checked_rule(table, at=number) for number, table in enumerate(tables, start=1)]
    names = [rule.name for rule in rules]
    for name in names:
        if names.count(name) > 1:
            raise AlertRuleError(f"the name {name} is given twice", remedy="give each its own")
    return tuple(rules)


def checked_rule(table: Mapping[str, Any], *, at: int = 1) -> AnyRule:
    """Return one rule.

    Args:
        table: Its keys.
        at: Its number in the file, for a fault of one without a name.

    Returns:
        The rule.

    Raises:
        AlertRuleError: It cannot be.
    """
    name = table.get("name")
    is_named = isinstance(name, str) and NAME_PATTERN.fullmatch(name) is not None
    who = f"alert {name}" if is_named else f"alert number {at}"
    kind = table.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        shown = "is missing" if kind is None else f"is not {str(kind)[:64]!r}"
        raise AlertRuleError(f"{who}: kind {shown}", remedy=f"write one of {', '.join(KINDS)}")
    wanted = KINDS[kind]
    try:
        rule: AnyRule = convert(dict(table), wanted)
    except WireFormatError as exc:
        fault = plain_fault(exc.message, wanted)
        raise AlertRuleError(_line(f"{who}: {fault}"), remedy=REMEDY) from exc
    for fault in _faults(rule):
        raise AlertRuleError(_line(f"{who}: {fault}"), remedy=REMEDY)
    return rule


def _faults(rule: Rule) -> Iterator[str]:
    """Yield what cannot be in a rule."""
    if NAME_PATTERN.fullmatch(rule.name) is None:
        yield "name is not 1 to 63 of a-z 0-9 . _ -, a letter or digit first"
    if len(rule.summary) > MAX_SUMMARY_CHARS or not rule.summary.isprintable():
        yield f"summary is not one line of at most {MAX_SUMMARY_CHARS} characters"
    for key, value in msgspec.structs.asdict(rule).items():
        if isinstance(value, float) and not math.isfinite(value):
            yield f"{key} is not a number: {value}"
    yield from _duration_faults(rule)
    if isinstance(rule, OfMetric):
        yield from _group_faults(rule)
    match rule:
        case Change():
            yield from _change_faults(rule)
            yield from _bound_faults(rule)
        case Threshold():
            yield from _bound_faults(rule)
        case Absence():
            yield from _absence_faults(rule)
        case BurnRate():
            yield from _burn_faults(rule)


def _duration_faults(rule: Rule) -> Iterator[str]:
    try:
        for_s = parse_duration_s(rule.for_)
    except WireFormatError as exc:
        yield f"for: {exc.message}"
        return
    if for_s > MAX_FOR_S:
        yield f"for is longer than {MAX_FOR_S / DAY_S:g} days"
    for key in DURATIONS:
        text = getattr(rule, key, "")
        if not text:
            if key == "offset" or not hasattr(rule, key):
                continue
            yield f"{key} is empty"
            return
        try:
            length_s = parse_duration_s(text)
        except WireFormatError as exc:
            yield f"{key}: {exc.message}"
            return
        if not MIN_WINDOW_S <= length_s <= MAX_WINDOW_S:
            yield f"{key} is not within 1 minute to {MAX_WINDOW_S / DAY_S:g} days"


def _group_faults(rule: OfMetric) -> Iterator[str]:
    for key, words in (("by", rule.by), ("where", rule.where)):
        if len(words) > MAX_WORDS:
            yield f"{key} has more than {MAX_WORDS} words"
        if not all(0 < len(word) <= MAX_WORD_CHARS and word.isprintable() for word in words):
            yield f"{key} has a word that is empty, too long or not printable"
        if len(set(words)) != len(words):
            yield f"{key} has a word twice"
    if MINUTE in rule.by:
        yield "by has the word minute: a window has one value"
    try:
        pairs = [pair for word in rule.where for pair in parse_conditions(word)]
    except QueryError as exc:
        yield f"where: {exc.message}"
        return
    if len(pairs) != len(rule.where):
        yield "where has a comma: write a word for each condition"


def _bound_faults(rule: Threshold) -> Iterator[str]:
    yield from _metric_faults("metric", rule.metric)
    yield from _stat_faults(rule.metric, rule.stat)
    if rule.above is None and rule.below is None:
        yield "it needs a bound: give above or below"
    if rule.above is not None and rule.below is not None:
        yield "it has two bounds, above and below: give one, and write two rules for both"
    if rule.clear is not None and rule.above is not None and rule.clear > rule.above:
        yield f"clear = {rule.clear:g} is above the bound {rule.above:g}"
    if rule.clear is not None and rule.below is not None and rule.clear < rule.below:
        yield f"clear = {rule.clear:g} is below the bound {rule.below:g}"
    if rule.min_count < 0:
        yield "min_count is negative"
    yield from bound_faults(rule)


def _change_faults(rule: Change) -> Iterator[str]:
    if rule.offset_s < rule.window_s:
        yield "offset is shorter than window: a value would be compared with itself"
    if rule.compare == "ratio" and can_be_negative(rule):
        yield (
            f"{rule.metric} can be negative, and ratios of such values mean nothing: write "
            'compare = "difference"'
        )


def _absence_faults(rule: Absence) -> Iterator[str]:
    if rule.metric is None:
        if rule.by or rule.where:
            yield "by and where need a metric; without one it is about devices"
        return
    yield from _metric_faults("metric", rule.metric)
    if rule.lookback_s <= rule.window_s:
        yield "lookback is not longer than window"
    elif rule.by and rule.for_s >= rule.lookback_s - rule.window_s:
        yield (
            "for is not shorter than lookback less window: by then a group that is absent is no "
            "longer expected"
        )


def _burn_faults(rule: BurnRate) -> Iterator[str]:
    for key, metric in (("errors", rule.errors), ("total", rule.total)):
        yield from _metric_faults(key, metric)
        yield from _stat_faults(metric, "count")
    if rule.errors == rule.total:
        yield "errors and total are the same metric"
    if not 0 < rule.objective < 1:
        yield "objective is not between 0 and 1, such as 0.999"
    elif rule.factor * (1 - rule.objective) >= 1:
        yield f"factor is too great: even if all goes wrong, it is {1 / (1 - rule.objective):g}"
    if rule.factor <= 0:
        yield "factor is not positive"
    if rule.clear is not None and not 0 <= rule.clear <= rule.factor:
        yield "clear is not within 0 to factor"
    if rule.long_s <= rule.short_s:
        yield "long is not longer than short"
    if rule.min_count is not None and rule.min_count < 0:
        yield "min_count is negative"


def _metric_faults(key: str, metric: str) -> Iterator[str]:
    if not is_name(metric):
        yield f"{key} is not the name of a metric: {metric[:64]!r}"


def _stat_faults(metric: str, stat: str) -> Iterator[str]:
    found = known(metric)
    if found is not None:
        try:
            check_statistics(metric, found.kind, (stat,))
        except QueryError as exc:
            yield f"stat: {exc.message}; {exc.remedy}"
    elif not QUANTILE.fullmatch(stat) and not any(stat in words for words in STATISTICS.values()):
        yield f"stat is not a statistic: {stat[:64]!r}"


def _line(text: str) -> str:
    """Return a fault as one bounded line, whatever keys and values are in it."""
    return "".join(char if char.isprintable() else " " for char in text[:MAX_FAULT_CHARS])


def changed_keys(before: Rule, after: Rule) -> Sequence[str]:
    """Return the keys in which two rules differ, in the order of the later one."""
    old, new = (msgspec.to_builtins(each) for each in (before, after))
    return [key for key in {**new, **old} if old.get(key) != new.get(key)]
