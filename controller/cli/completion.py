"""Names from the controller, for the completion of a shell.

Rules:
- A person waits for a completion: after `TIMEOUT_S` there is none. A fault is never shown.
- Commands that do not complete a name import nothing for it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from controller.cli.arguments import hoist_global_options

if TYPE_CHECKING:
    from controller.client.fleet import Fleet
    from controller.client.target import Target

TIMEOUT_S: Final = 0.5
MOST: Final = 100
MOST_ROLLOUTS: Final = 30
WORDS: Final = ("_TYPER_COMPLETE_ARGS", "COMP_WORDS")
"""Where the script of the shell puts the line, for zsh, fish and PowerShell, and for bash."""


def devices(incomplete: str) -> list[str]:
    """Return identifiers of devices that begin with what was typed."""
    selector = f"id={incomplete}*" if incomplete else ""
    return _asked(
        lambda fleet: (d.id for d in fleet.devices.list(selector=selector).page(limit=MOST)[0])
    )


def rollouts(incomplete: str) -> list[str]:
    """Return identifiers of the newest rollouts."""
    del incomplete  # Typer leaves out the names that begin otherwise
    return _asked(lambda fleet: (r.id for r in fleet.rollouts.list().page(limit=MOST_ROLLOUTS)[0]))


def releases(incomplete: str) -> list[str]:
    """Return names and versions of releases; of one model once it is named."""
    model = incomplete.partition(":")[0] if ":" in incomplete else ""
    return _asked(
        lambda fleet: (
            f"{r.name}:{r.version}" for r in fleet.releases.list(model=model).page(limit=MOST)[0]
        )
    )


def groups(incomplete: str) -> list[str]:
    """Return names of groups."""
    del incomplete
    return _asked(lambda fleet: (g.name for g in fleet.groups.list()))


def selectors(incomplete: str) -> list[str]:
    """Return the groups as selectors; a longer selector is not completed."""
    del incomplete
    return _asked(lambda fleet: (f"group:{g.name}" for g in fleet.groups.list()))


def metrics(incomplete: str) -> list[str]:
    """Return names of metrics that devices have reported."""
    del incomplete
    return _asked(lambda fleet: (m.name for m in fleet.telemetry.metrics()))


def models(incomplete: str) -> list[str]:
    """Return names of models."""
    del incomplete
    return _asked(lambda fleet: (m.name for m in fleet.models.list()))


def policies(incomplete: str) -> list[str]:
    """Return names of policies."""
    del incomplete
    return _asked(lambda fleet: (p.name for p in fleet.policies.list()))


def alerts(incomplete: str) -> list[str]:
    """Return names of rules of alerts."""
    del incomplete
    return _asked(lambda fleet: (r.name for r in fleet.alerts.rules()))


def saved_queries(incomplete: str) -> list[str]:
    """Return names of saved queries."""
    del incomplete
    return _asked(lambda fleet: (q.name for q in fleet.saved_queries.list()))


def api_tokens(incomplete: str) -> list[str]:
    """Return names of API tokens."""
    del incomplete
    return _asked(lambda fleet: (t.name for t in fleet.access.list()))


def enrolment_tokens(incomplete: str) -> list[str]:
    """Return names of enrolment tokens that count."""
    del incomplete
    return _asked(lambda fleet: (t.id for t in fleet.tokens.list(state="open").page(limit=MOST)[0]))


def _asked(ask: Callable[[Fleet], Iterable[str]]) -> list[str]:
    """Return what the controller answers in time, as far as a shell can take it for a word."""
    from controller.client.fleet import Fleet

    found: list[str] = []

    def look() -> None:
        with suppress(Exception), Fleet(_target(), timeout_s=TIMEOUT_S, patience_s=0.0) as fleet:
            found.extend(name for name in ask(fleet) if name.isprintable() and " " not in name)

    # A thread, because a name that is looked up, or an answer that drips, knows no time.
    asking = threading.Thread(target=look, daemon=True)
    asking.start()
    asking.join(TIMEOUT_S)
    return list(found)


def _target() -> Target:
    from controller.client.target import ConnectionOptions, find_controller

    given = dict(_options())
    home, token_file, ca_file = (
        Path(given[name]) if name in given else None
        for name in ("--home", "--token-file", "--ca-file")
    )
    options = ConnectionOptions(
        home=home,
        url=given.get("--url"),
        token_file=token_file,
        ca_file=ca_file,
        api_clear_text="--api-clear-text" in given,
    )
    return find_controller(options, os.environ)


def _options() -> Iterator[tuple[str, str]]:
    """Yield the options of the line that say where the controller is, wherever they stand."""
    import shlex

    line = next((os.environ[name] for name in WORDS if name in os.environ), "")
    words = iter(hoist_global_options(shlex.split(line)[1:]))
    for word in words:
        name, equals, value = word.partition("=")
        if name == "--api-clear-text":
            yield name, ""
        elif not name.startswith("--"):
            return
        else:
            yield name, value if equals else next(words, "")
