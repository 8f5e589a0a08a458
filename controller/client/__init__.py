"""The Python client of the controller's API; the command line `fleet` uses it, too.

    from controller.client import Fleet

    with Fleet.from_home(Path("my-fleet")) as fleet:
        for device in fleet.devices.list(selector="site=berlin"):
            print(device.id, device.release)

Rules:
- What is exported here is imported when it is used, so that `fleet --help` does not wait for it.
"""

from __future__ import annotations

import importlib
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from controller.client.errors import (
        AnswerError,
        ArgumentError,
        ClientError,
        FaultError,
        NoControllerError,
        UnreachableError,
    )
    from controller.client.fleet import Fleet
    from controller.client.rollout_files import rollout_file, rollout_request

__all__ = [
    "AnswerError",
    "ArgumentError",
    "ClientError",
    "FaultError",
    "Fleet",
    "NoControllerError",
    "UnreachableError",
    "rollout_file",
    "rollout_request",
]
_ERRORS: Final = "controller.client.errors"
_ELSEWHERE: Final = MappingProxyType(
    {
        "Fleet": "controller.client.fleet",
        "rollout_file": "controller.client.rollout_files",
        "rollout_request": "controller.client.rollout_files",
    }
)


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_ELSEWHERE.get(name, _ERRORS)), name)
