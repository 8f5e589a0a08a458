"""How trusted metadata is shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from controller.cli.lists import time_heading
from controller.cli.output import write_json
from controller.metadata_schemas import MetadataState
from wire.console.output import remark, write_table
from wire.console.text import local_time

if TYPE_CHECKING:
    from controller.metadata.documents import Authored


def show_state(state: MetadataState) -> None:
    """Print who may sign what."""
    rows = [
        (
            role.role,
            role.version or "-",
            local_time(role.expires_at_s) if role.expires_at_s is not None else "-",
            f"{role.threshold} of {len(role.keys)}",
            "-" if role.releases is None else role.releases,
            ", ".join(key[:16] for key in role.keys),
        )
        for role in state.roles
    ]
    if state.fault:
        remark(f"warning: {state.fault}")
    expires = time_heading("EXPIRES", (role.expires_at_s for role in state.roles))
    write_table(("ROLE", "VERSION", expires, "SIGN", "RELEASES", "KEYS"), rows)
    if state.trust_file_devices:
        remark(f"devices that trust trust.json, and nothing of this: {state.trust_file_devices}")
    if state.unknown_devices:
        remark(f"devices that have not said what they trust: {state.unknown_devices}")


def show_lists(metadata: Authored | None, *, as_json: bool) -> None:
    """Show what each list has, published or not."""
    rows = [
        (path.replace("/", ":"), role, target.hashes["sha256"])
        for role, listed in (metadata.lists.items() if metadata is not None else ())
        for path, target in listed.signed.targets.items()
    ]
    if as_json:
        write_json([dict(zip(("release", "role", "digest"), row, strict=True)) for row in rows])
    else:
        write_table(("RELEASE", "ROLE", "DIGEST"), rows)


def show_change(state: MetadataState | None) -> None:
    """Show what holds now; nothing for a change that others have to sign."""
    if state is not None:
        show_state(state)
