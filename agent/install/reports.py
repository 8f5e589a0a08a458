"""What an install tells the controller, while it is under way and when it has ended. Pure."""

from __future__ import annotations

from typing import Final

import msgspec

from agent.errors import NoVariantError
from agent.install.records import Failure, ModelRecord
from agent.install.states import State
from wire.errors import FleetError, shortened
from wire.installs import InstallOutcome, InstallReport
from wire.progress import TransferProgress

MAX_DETAIL: Final = 500
NOTHING_SERVES: Final = "the release is installed, but no variant of it can serve now"


class Reporter(msgspec.Struct, frozen=True, kw_only=True):
    """Whose install it is."""

    device: str
    model: str

    def report(
        self,
        record: ModelRecord,
        state: State,
        *,
        failure: Failure | None,
        serving: tuple[str | None, str | None],
        transfer: TransferProgress,
        at_s: float,
        waits_for: str = "",
    ) -> InstallReport:
        """Return a report.

        Args:
            record: What is saved of the install.
            state: Where it is; idle if it has ended.
            failure: Why it failed; None if it has not.
            serving: The digest of the package and the name of the variant that serve now.
            transfer: How far the package has come.
            at_s: Wall time.
            waits_for: What the install waits for.
        """
        rate = transfer.rate_bytes_per_s if state is State.FETCHING else None
        outcome: InstallOutcome = "failed" if failure else "succeeded"
        if state is not State.IDLE:
            outcome = "running"
        return InstallReport(
            device=self.device,
            model=self.model,
            revision=record.revision,
            digest=record.target.digest if record.target else None,
            phase=(failure.phase if failure else state).value,
            outcome=outcome,
            active=serving[0],
            variant=serving[1],
            error_code=failure.code if failure else "",
            detail=failure.detail if failure else waits_for,
            done_bytes=transfer.done_bytes,
            total_bytes=transfer.total_bytes,
            at_s=at_s,
            rate_bytes_per_s=msgspec.UNSET if rate is None else round(rate, 1),
            bytes_by_source=transfer.bytes_by_source or msgspec.UNSET,
        )


def serves_nothing(report: InstallReport) -> InstallReport:
    """Return the failure to tell of an install that succeeded, but of which nothing serves now."""
    return msgspec.structs.replace(
        report, outcome="failed", error_code=NoVariantError.code, detail=NOTHING_SERVES
    )


def failure_of(state: State, exc: FleetError) -> Failure:
    """Return a failure; a file's name in its detail may be no Unicode, which no record can hold."""
    detail = " ".join(str(exc).split()).encode(errors="backslashreplace").decode()
    return Failure(phase=state, code=exc.code, detail=shortened(detail, MAX_DETAIL))
