"""The controller's own figures, as families of Prometheus: short queries, and counts in memory.

Rules:
- What is counted in memory begins at 0 with each start, and says since when.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, get_args

from controller.services.alert_rules import in_force
from controller.store import alerts, devices, rollouts
from controller.store.database import Database
from telemetry.server.alerts.rules import Severity
from telemetry.server.alerts.states import Phase
from telemetry.server.export.claims import OWN_PREFIX
from telemetry.server.export.families import Family, FamilyKind, Sample, gathered
from wire.clock import Clock
from wire.topics import UpKind
from wire.version import VERSION

KINDS: Final = frozenset({*get_args(UpKind), "enrol"})
"""Which counts are those of messages; the others are those of refusals, by code."""

MESSAGES: Final = f"{OWN_PREFIX}messages_total"
REJECTED: Final = f"{OWN_PREFIX}otlp_rejected_total"
REFUSED: Final = f"{OWN_PREFIX}refused_messages_total"
WAITING: Final = f"{OWN_PREFIX}waiting_messages"
CONNECTED: Final = f"{OWN_PREFIX}broker_connected"
ALERTS: Final = f"{OWN_PREFIX}alerts_firing"
FAULTY_RULES: Final = f"{OWN_PREFIX}alert_rules_in_error"
BUILD: Final = f"{OWN_PREFIX}build_info"
DEVICES: Final = f"{OWN_PREFIX}devices"
ROLLOUTS: Final = f"{OWN_PREFIX}rollouts"
FIGURES: Final[dict[str, tuple[FamilyKind, str]]] = {
    FAULTY_RULES: (
        "gauge",
        "rules of alerts that this controller cannot evaluate, or not wholly",
    ),
    ALERTS: ("gauge", "alerts that are firing, by severity"),
    BUILD: ("gauge", "1, with the version of the controller as a label"),
    CONNECTED: ("gauge", "1 while there is a connection with the broker, else 0"),
    DEVICES: ("gauge", "enrolled devices, by profile and presence"),
    MESSAGES: ("counter", "messages of devices that were handled, by kind"),
    REJECTED: (
        "counter",
        "what a collector of OTLP has rejected for good, by what it is: measurements or events",
    ),
    REFUSED: ("counter", "messages of devices that were refused, late or there twice, by code"),
    ROLLOUTS: ("gauge", "rollouts, by state"),
    WAITING: ("gauge", "messages of devices that wait to be handled"),
}
"""What each means."""

ONLINE: Final = {True: "true", False: "false"}
Row = tuple[str, Sample]


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """Where the figures come from."""

    counts: Mapping[str, int]
    waiting: Callable[[], int]
    is_connected: Callable[[], bool]
    faulty_rules: Callable[[], int]


class OwnFigures:
    """The controller's own figures.

    Args:
        database: The control state.
        watched: The counts of the ingest, and other figures in memory.
        clock: Wall time.
        rejected: What a collector has rejected, by what it is.
    """

    def __init__(
        self, database: Database, watched: Watched, clock: Clock, rejected: Mapping[str, int]
    ) -> None:
        self._database = database
        self._watched = watched
        self._rejected = rejected
        self._started_at_s = clock.now_s()

    def families(self) -> list[Family]:
        """Return the figures.

        Raises:
            DatabaseError: The database does not answer.
        """
        found = [*self._in_memory(), *self._in_database()]
        return gathered((name, *FIGURES[name], sample) for name, sample in found)

    def _in_memory(self) -> Iterator[Row]:
        since_s = self._started_at_s
        for name, count in dict(self._watched.counts).items():
            if name in KINDS:
                yield MESSAGES, Sample((("kind", name),), count, since_s)
            else:
                yield REFUSED, Sample((("code", name),), count, since_s)
        for what, count in self._rejected.items():
            yield REJECTED, Sample((("what", what),), count, since_s)
        yield WAITING, Sample((), self._watched.waiting())
        yield FAULTY_RULES, Sample((), self._watched.faulty_rules())
        yield CONNECTED, Sample((), float(self._watched.is_connected()))
        yield BUILD, Sample((("version", VERSION),), 1.0)

    def _in_database(self) -> Iterator[Row]:
        with self._database.reading() as transaction:
            by_profile = devices.count_by_profile(transaction)
            by_state = rollouts.count_by_state(transaction)
            rules, by_rule = in_force(transaction), alerts.counts(transaction)
        for (profile, online), count in by_profile.items():
            yield DEVICES, Sample((("online", ONLINE[online]), ("profile", profile)), count)
        for state, count in by_state.items():
            yield ROLLOUTS, Sample((("state", state),), count)
        firing: Counter[str] = Counter(dict.fromkeys(get_args(Severity), 0))
        for rule in rules:
            count = by_rule.get(rule.name, Counter())[Phase.FIRING]
            firing[str(rule.spec.get("severity", ""))] += count
        for severity, count in firing.items():
            yield ALERTS, Sample((("severity", severity),), count)


def document() -> str:
    """Return the table of the figures as it stands in `docs/exports.md`."""
    lines = ["| at `/metrics` | type | meaning |", "|---|---|---|"]
    lines += [f"| `{name}` | {kind} | {meaning} |" for name, (kind, meaning) in FIGURES.items()]
    return "\n".join(lines) + "\n"
