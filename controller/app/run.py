"""A controller from its start to its end, as the command line runs it."""

from __future__ import annotations

import contextlib
import logging
import threading
from pathlib import Path

from controller.app.collecting import collect_seldom
from controller.app.home import RELEASE_KEY_FILE
from controller.app.logs import configure_logging
from controller.app.service import Controller
from controller.app.starting import check_writable, warn_about_release_key
from controller.config import ControllerConfig
from controller.errors import StorageError
from controller.ports import AccessFactory
from wire.files import lock
from wire.stop_signals import on_stop_signal

REPLACED_STATUS = 3
"""Exit status of a controller that gave way. Its unit does not start it again: it would end the
other one, which would come back in turn."""

_log = logging.getLogger(__name__)


def run(config: ControllerConfig, access_factory: AccessFactory) -> int:
    """Run a controller until SIGTERM or SIGINT, or until another takes its place.

    Args:
        config: The settings.
        access_factory: Makes the access to the broker's accounts.

    Returns:
        The exit status: 0, or `REPLACED_STATUS`.

    Raises:
        StorageError: Another controller uses the data directory, or it cannot be written.
        FleetError: It could not start.
    """
    configure_logging()
    stop, replaced = threading.Event(), threading.Event()

    def give_way() -> None:
        replaced.set()
        stop.set()

    data_dir = Path(config.data_dir)
    check_writable(data_dir)
    locked = lock(data_dir)
    if locked is None:
        raise StorageError(
            f"another controller uses the data directory {data_dir}",
            remedy="stop it or name another data directory",
        )
    warn_about_release_key(Path(config.director_key_file).with_name(RELEASE_KEY_FILE))
    with locked, contextlib.closing(access_factory(config)) as access:
        controller = Controller(config, access, on_replaced=give_way)
        with on_stop_signal(stop.set):
            try:
                controller.start()
                collect_seldom()
                stop.wait()
            finally:
                controller.stop()
    if replaced.is_set():
        _log.error(
            "another controller with the same director's key has connected, and this one ends: "
            "two would give the same devices different orders; start it again if it is to stay"
        )
        return REPLACED_STATUS
    return 0
