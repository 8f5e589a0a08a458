"""Which files of a package are still to come, in the order in which they are of use."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from agent.package_files import is_intact
from agent.packages import Package
from agent.select.decisions import candidate, preference
from wire.package.index import FileEntry
from wire.package.variant import Variant


def lacking_files(
    package: Package, variants: Sequence[Variant], check: Callable[[], None]
) -> list[FileEntry]:
    """Return the files that variants need and that are not here, or not as they were signed.

    Args:
        package: Their package.
        variants: Those that can run here.
        check: Called before each file is read; raises an error when the install must end.

    Returns:
        First what the variant needs that is probed first.
    """
    found = []
    for entry in _in_order_of_use(package, variants):
        check()
        if not is_intact(package.directory, entry):
            found.append(entry)
    return found


def _in_order_of_use(package: Package, variants: Sequence[Variant]) -> list[FileEntry]:
    by_name = {variant.name: variant for variant in variants}
    needed = [
        entry
        for name in preference(map(candidate, variants))
        for entry in package.files((by_name[name],))
    ]
    return list({entry.path: entry for entry in needed}.values())
