"""An environment as a device has it: what `pip install edgefleet` brings, and nothing else.

The environment of this project has the tools of development too, and some of them put themselves
into every process: setuptools' import hook, and typing_extensions, which msgspec imports where it
is installed.
"""

from __future__ import annotations

import venv
from importlib.metadata import distribution
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
OURS: Final = ("agent", "runtime_adapters", "telemetry", "wire")
BROUGHT: Final = (
    *("cffi", "msgspec", "paho-mqtt", "pycparser", "pynacl"),
    *("securesystemslib", "tuf", "urllib3"),
)
"""What edgefleet without extras depends on, directly or not. One that is missing here fails."""

SCRIPT: Final = """\
#!{python}
import sys
from agent.__main__ import main
sys.exit(main())
"""


def device_environment(folder: Path, *also: str) -> Path:
    """Make the environment out of links to what is installed here.

    Args:
        folder: Where; made.
        *also: Distributions that it has besides.

    Returns:
        The folder of its programs: `python` and `fleet-agent`.

    Raises:
        PackageNotFoundError: A distribution is not installed here.
    """
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    for name in (*BROUGHT, *also):
        found = distribution(name)
        tops = {file.parts[0] for file in found.files or () if file.parts[0] != ".."}
        for top in tops:
            (packages / top).symlink_to(str(found.locate_file(top)))
    for name in OURS:
        (packages / name).symlink_to(ROOT / name)
    programs = folder / "bin"
    agent = programs / "fleet-agent"
    agent.write_text(SCRIPT.format(python=programs / "python"))
    agent.chmod(0o755)
    return programs
