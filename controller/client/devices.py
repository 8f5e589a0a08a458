"""Requests about devices and groups of them."""

from __future__ import annotations

import builtins
from collections.abc import Iterator, Sequence
from typing import Final

from controller.client.connection import segment
from controller.client.listing import Listing, Resource, order, yes
from controller.device_schemas import Device, DeviceUpdate, DriftedModel, SignedDesired
from controller.group_schemas import Group, GroupMembers, GroupRequest
from controller.label_schemas import LabelRequest, LabelsChange
from controller.telemetry_schemas import DeviceEvent

_AT_ONCE: Final = 10_000


class Devices(Resource):
    """Devices."""

    def list(
        self, *, selector: str = "", drifted: bool = False, sort: str = "", reverse: bool = False
    ) -> Listing[Device]:
        """List devices.

        Args:
            selector: Only those that match.
            drifted: Only those that run another release than they should.
            sort: `id`, `enrolled`, `profile`, `seen` or `state`; empty for `id`.
            reverse: The other way round.
        """
        params = {"selector": selector, "drifted": yes(drifted), **order(sort, reverse=reverse)}
        return Listing(self._api, "/v1/devices", Device, params)

    def get(self, device: str) -> Device:
        """Return a device."""
        return self._api.get(f"/v1/devices/{segment(device)}", Device)

    def update(self, device: str, change: DeviceUpdate) -> Device:
        """Change a device; what is None stays as it is."""
        return self._api.send("PATCH", f"/v1/devices/{segment(device)}", Device, change)

    def label(self, request: LabelRequest) -> LabelsChange:
        """Set and remove labels of several devices, of all or of none."""
        return self._api.send("POST", "/v1/devices/labels", LabelsChange, request)

    def drift(self, *, selector: str = "") -> Iterator[DriftedModel]:
        """List which devices run another release than they should, since when, and why.

        Args:
            selector: Only those that match.
        """
        params = {"selector": selector, "limit": str(_AT_ONCE)}
        while page := self._api.get("/v1/release-drift", list[DriftedModel], params):
            yield from page
            params |= {"after": page[-1].device, "after_model": page[-1].model}

    def desired(self, device: str) -> SignedDesired:
        """Return what a device should run, signed."""
        return self._api.get(f"/v1/devices/{segment(device)}/desired", SignedDesired)

    def events(
        self,
        device: str,
        *,
        since_s: float = 0.0,
        kinds: Sequence[str] = (),
        model: str | None = None,
        limit: int = 200,
    ) -> builtins.list[DeviceEvent]:
        """Return what happened on a device, the oldest first.

        Args:
            device: Its identifier.
            since_s: Wall time; nothing earlier.
            kinds: Only these; empty for all.
            model: Only what is about it, or about the device as a whole; None for all.
            limit: The greatest number.
        """
        params: dict[str, str | list[str]] = {
            "since_s": f"{since_s:.3f}", "kind": [*kinds], "limit": str(limit),
        }  # fmt: skip
        if model is not None:
            params["model"] = model
        return self._api.get(f"/v1/devices/{segment(device)}/events", list[DeviceEvent], params)


class Groups(Resource):
    """Groups of devices."""

    def list(self, *, sort: str = "", reverse: bool = False) -> Listing[Group]:
        """List groups.

        Args:
            sort: `name` or `changed`; empty for `name`.
            reverse: The other way round.
        """
        return Listing(self._api, "/v1/groups", Group, order(sort, reverse=reverse))

    def get(self, group: str) -> GroupMembers:
        """Return a group and the devices that it means now."""
        return self._api.get(f"/v1/groups/{segment(group)}", GroupMembers)

    def set(self, group: str, request: GroupRequest) -> GroupMembers:
        """Make a group, or replace the one of that name."""
        return self._api.send("PUT", f"/v1/groups/{segment(group)}", GroupMembers, request)

    def remove(self, group: str) -> Group:
        """Remove a group that nothing names."""
        return self._api.send("DELETE", f"/v1/groups/{segment(group)}", Group)
