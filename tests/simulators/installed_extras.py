"""Environments as `pip install 'edgefleet[...]'` makes them, of links to what is installed here.

What an environment has follows from the metadata of our wheel and of each distribution, markers and
extras included, as pip resolves them. Only the versions are those of this environment. So no index
is asked, nothing is copied, and an environment of a gigabyte takes a second.
"""

from __future__ import annotations

import compileall
import re
import venv
import zipfile
from importlib.metadata import Distribution, PackageNotFoundError, PathDistribution, distribution
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement

OURS: Final = "edgefleet"
SCRIPT: Final = """\
#!{python}
import sys
from {module} import {function}
sys.exit({function}())
"""


class NotInstalledError(Exception):
    """What an extra brings is not installed here, so its environment cannot be made."""


def install(wheel: Path, folder: Path, *extras: str) -> Path:
    """Make an environment with our wheel, some extras, and nothing else.

    Args:
        wheel: Ours.
        folder: Where; made.
        *extras: Names of extras.

    Returns:
        The folder of its programs: `python`, `fleet` and `fleet-agent`.

    Raises:
        NotInstalledError: Something that the extras bring is not installed here.
    """
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    for path in _unpacked(wheel).iterdir():
        (packages / path.name).symlink_to(path)
    (metadata,) = packages.glob(f"{OURS}-*.dist-info")
    ours = PathDistribution(metadata)
    for found in _brought(ours, extras):
        _link(found, packages)
    programs = folder / "bin"
    for entry in ours.entry_points:
        module, _, function = entry.value.partition(":")
        program = programs / entry.name
        program.write_text(
            SCRIPT.format(python=programs / "python", module=module, function=function)
        )
        program.chmod(0o755)
    return programs


def declared_extras(wheel: Path) -> list[str]:
    """Return the names of all extras of a wheel, in their order."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        text = archive.read(name).decode()
    return re.findall(r"(?m)^Provides-Extra: (\S+)$", text)


def _unpacked(wheel: Path) -> Path:
    """Return where the files of our wheel are, compiled once for all environments."""
    folder = wheel.parent / "unpacked"
    if not folder.exists():
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
        compileall.compile_dir(folder, quiet=1)
    return folder


def _brought(ours: Distribution, extras: tuple[str, ...]) -> list[Distribution]:
    """Return the distributions that pip would install beside ours."""
    found: dict[str, Distribution] = {}
    done: set[tuple[str, str]] = set()
    todo = [(ours, extra) for extra in ("", *extras)]
    while todo:
        here, extra = todo.pop()
        if (key := (_plain(here.name), extra)) in done:
            continue
        done.add(key)
        for text in here.requires or ():
            need = Requirement(text)
            if need.marker is not None and not need.marker.evaluate({"extra": extra}):
                continue
            there = ours if _plain(need.name) == OURS else _installed(need)
            if there is not ours:
                found[_plain(need.name)] = there
            todo += [(there, wanted) for wanted in ("", *sorted(need.extras))]
    return [found[name] for name in sorted(found)]


def _installed(need: Requirement) -> Distribution:
    try:
        return distribution(need.name)
    except PackageNotFoundError as exc:
        raise NotInstalledError(f"{need.name} is not installed here") from exc


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _link(found: Distribution, packages: Path) -> None:
    """Link a distribution's files: whole packages, but file by file what others may share."""
    linked: set[tuple[str, ...]] = set()
    for file in found.files or ():
        parts = file.parts
        if parts[0] == ".." or "__pycache__" in parts:
            continue
        # Of a folder without __init__.py, such as google/, other distributions have parts too.
        place = next(
            (
                parts[:count]
                for count in range(1, len(parts))
                if (Path(str(found.locate_file("/".join(parts[:count])))) / "__init__.py").is_file()
            ),
            parts,
        )
        if place in linked:
            continue
        linked.add(place)
        target = packages.joinpath(*place)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(str(found.locate_file("/".join(place))))
