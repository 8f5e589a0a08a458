"""What can go wrong on a device, outside the worker processes.

Rules:
- Install reports contain the code; `retryable` alone decides whether a step is tried again.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator

from wire.errors import FleetError


class AgentError(FleetError):
    """The base of all errors on this device."""

    code = "agent"


class ConfigError(AgentError):
    """The agent's configuration cannot be used."""

    code = "agent.config"


class CertificateError(AgentError):
    """The device cannot ask for a certificate, or cannot use the one that it got."""

    code = "agent.certificate"


class IllegalTransitionError(AgentError):
    """A state got an event that its table does not have: a bug, which stops the agent."""

    code = "agent.transition"


class StorageError(AgentError):
    """The device's storage failed."""

    code = "agent.storage"


class StorageFullError(StorageError):
    """The device's storage is full, or would be."""

    code = "agent.storage.full"


class FetchError(AgentError):
    """A blob did not come, or not whole; its checked chunks are kept for the next attempt."""

    code = "agent.fetch"
    retryable = True


class BlobMissingError(AgentError):
    """The controller has no such blob."""

    code = "agent.fetch.missing"


class DeferredError(AgentError):
    """A transfer waits, because it may cost its network or the storage no more now."""

    code = "agent.deferred"


class NeedsDeltaError(DeferredError):
    """A transfer waits, because by this network only a delta may come."""

    code = "agent.deferred.delta"


class RefusedError(AgentError):
    """A desired state is for another device, or inconsistent."""

    code = "agent.refused"


class NotYetError(AgentError):
    """A desired state may not be followed now; the controller sends it again."""

    code = "agent.not_yet"
    retryable = True


class OlderRevisionError(RefusedError):
    """A desired state is older than the accepted one."""

    code = "agent.refused.older"


class NoVariantError(AgentError):
    """No variant of a package can run on this device now."""

    code = "agent.variant"


class GoldenError(AgentError):
    """A variant does not reproduce the reference's outputs on this device."""

    code = "agent.golden"


class ConfirmError(AgentError):
    """A package did not stay healthy after the switch to it."""

    code = "agent.confirm"


class HookError(AgentError):
    """A hook said no to an install, or did not say what it had to."""

    code = "agent.hook"


class HookDelayError(HookError):
    """Hooks delayed an install for longer than they may."""

    code = "agent.hook.delay"


class HookFilesError(HookError):
    """The directory of the hooks cannot be read, or holds what must not be run."""

    code = "agent.hook.files"


class AttemptsError(AgentError):
    """A step was begun too often without success: a crash loop, or a fault that stays."""

    code = "agent.attempts"


class PeersError(AgentError):
    """This device cannot serve other devices of its site, or does not serve one of them now."""

    code = "agent.peers"


class MeasureError(AgentError):
    """This device does not measure a package now, or cannot go on with it."""

    code = "agent.measure"


class ShadowError(AgentError):
    """A release cannot run as a shadow now."""

    code = "agent.shadow"


class SupersededError(AgentError):
    """A newer desired state ended an install."""

    code = "agent.superseded"


class InterjectedError(AgentError):
    """An install pauses, because the operator hands a package over."""

    code = "agent.interjected"


class StoppedError(AgentError):
    """The agent is being stopped; unfinished work goes on after the next start."""

    code = "agent.stopped"


class EnrolmentError(AgentError):
    """The device could not be enrolled in the fleet."""

    code = "agent.enrolment"
    retryable = True


class EnrolmentRefusedError(AgentError):
    """The controller refuses this device."""

    code = "agent.enrolment.refused"


class EnrolmentWaitsError(AgentError):
    """The device waits until an operator lets it in.

    Args:
        message: What the controller says.
        ask_again_s: After how long it wants to be asked again.
    """

    code = "agent.enrolment.waits"
    retryable = True

    def __init__(self, message: str, *, ask_again_s: float) -> None:
        super().__init__(message)
        self.ask_again_s = ask_again_s


class ControlError(AgentError):
    """A local request to the agent could not be answered."""

    code = "agent.control"


class ReplayError(AgentError):
    """A policy cannot be replayed with the given files or options."""

    code = "agent.replay"


@contextlib.contextmanager
def storage_faults(what: str) -> Iterator[None]:
    """Turn errors of the operating system within a `with` block into storage errors.

    Args:
        what: What has failed, such as `cannot write the agent's state`.

    Yields:
        Nothing.

    Raises:
        StorageError: The storage failed.
        StorageFullError: It is full.
    """
    try:
        yield
    except OSError as exc:
        text = f"{what}: {(exc.strerror or str(exc)).lower()}"
        if exc.errno in {errno.ENOSPC, errno.EDQUOT}:
            raise StorageFullError(text, remedy="free some storage on the device") from exc
        raise StorageError(text) from exc
