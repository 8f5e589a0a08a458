"""Devices, as the operator sees and changes them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict

from controller.device_schemas import Device, DeviceModel, DeviceUpdate
from controller.domain.paging import PageRequest, Part, cut
from controller.domain.peer_urls import why_refused
from controller.domain.policy_choice import choose_policy
from controller.domain.selectors import checked_labels
from controller.domain.states import DeviceState
from controller.domain.transfers import FETCHING
from controller.label_schemas import LabelRequest, LabelsChange
from controller.peer_settings import PeersConfig
from controller.ports import BrokerAccess
from controller.services import labelling, sorts
from controller.services.transfers import Transfers, shown_transfer
from controller.store import device_records, devices, penalties, policy_choices, rollout_steps
from controller.store.database import Database
from controller.store.device_records import DeviceRecord, ModelRecord
from controller.store.groups import read_selector
from controller.store.policy_choices import PolicySet
from controller.store.release_tables import ReleaseRow
from wire.clock import Clock
from wire.codec import convert

_SAME = (
    *("id", "state", "online", "lent", "agent_version", "desired_form", "reported_revision"),
    *("runtimes", "peer_url", "trust_file"),
    *("enrolled_at_s", "certificate_ends_at_s", "last_seen_at_s"),
)
"""The fields that have the same name in the table and in the API."""


class Devices:
    """The devices of the fleet.

    Args:
        database: The control state.
        access: The broker's accounts.
        transfers: The transfers that run.
        peers: Whom devices are told as their peers.
        clock: Wall time.
        wrong_clocks: Returns how far the clocks of devices are ahead, of those that are wrong.
    """

    def __init__(
        self,
        database: Database,
        access: BrokerAccess,
        transfers: Transfers,
        peers: PeersConfig,
        clock: Clock,
        *,
        wrong_clocks: Callable[[], Mapping[str, float]],
    ) -> None:
        self._database = database
        self._access = access
        self._transfers = transfers
        self._peers = peers
        self._clock = clock
        self._wrong_clocks = wrong_clocks

    def selected(
        self, selector: str, page: PageRequest, *, after: str = "", only_drifted: bool = False
    ) -> Part[Device]:
        """Return a part of the devices that match a selector.

        Args:
            selector: A label expression.
            page: Which part.
            after: Only identifiers after this one.
            only_drifted: Leave out the devices that run what they should.

        Returns:
            The devices.

        Raises:
            SelectorError: The selector cannot be read.
        """
        now_s = self._clock.now_s()
        with self._database.reading() as transaction:
            parsed = read_selector(transaction, selector, now_s=now_s)
            found = device_records.records(
                transaction, parsed, page=page, after=after, only_drifted=only_drifted
            )
            known = policy_choices.current_policies(transaction)
        clocks = self._wrong_clocks()
        return cut([self._shown(item, known, clocks) for item in found], page, sorts.DEVICES)

    def chosen(self, selector: str) -> frozenset[str] | None:
        """Return the identifiers of the devices that match a selector; None for an empty one.

        Args:
            selector: A label expression.

        Raises:
            SelectorError: The selector cannot be read.
        """
        with self._database.reading() as transaction:
            parsed = read_selector(transaction, selector, now_s=self._clock.now_s())
            return None if parsed.tree is None else devices.chosen(transaction, parsed)

    def presence(self, selector: str) -> dict[str, bool]:
        """Return the enrolled devices that match a selector, and whether each is online.

        Args:
            selector: A label expression.

        Raises:
            SelectorError: The selector cannot be read.
        """
        with self._database.reading() as transaction:
            parsed = read_selector(transaction, selector, now_s=self._clock.now_s())
            return devices.presence(transaction, parsed)

    def enrolled(self, selector: str) -> frozenset[str]:
        """Return the identifiers of the enrolled devices that match a selector.

        Args:
            selector: A label expression.

        Raises:
            SelectorError: The selector cannot be read.
        """
        return frozenset(self.presence(selector))

    def heard_at_s(self, selector: str) -> dict[str, tuple[float, float]]:
        """Return when each enrolled device that matches a selector enrolled, and was heard last.

        Args:
            selector: A label expression.

        Raises:
            SelectorError: The selector cannot be read.
        """
        with self._database.reading() as transaction:
            parsed = read_selector(transaction, selector, now_s=self._clock.now_s())
            return devices.heard_at_s(transaction, parsed)

    def values_by_name(self, names: Collection[str]) -> dict[str, dict[str, str]]:
        """Return what devices can be grouped by: labels, `profile`, `arch`, `agent_version`.

        Args:
            names: Which; those that no device has are left out.

        Returns:
            Name to device to value.
        """
        with self._database.reading() as transaction:
            return devices.values_by_name(transaction, names)

    def names_to_group_by(self) -> list[str]:
        """Return what devices can be selected and grouped by: their labels, and what all have."""
        with self._database.reading() as transaction:
            return devices.names_to_group_by(transaction)

    def get(self, device: str) -> Device:
        """Return a device.

        Raises:
            UnknownDeviceError: There is none of that name.
        """
        with self._database.reading() as transaction:
            found = device_records.record(transaction, device)
            known = policy_choices.current_policies(transaction)
        return self._shown(found, known, self._wrong_clocks())

    def update(self, device: str, change: DeviceUpdate) -> Device:
        """Change the labels or the state of a device.

        A device that leaves the fleet is taken out of its rollout, and the broker refuses it. One
        that is let in again is not held out of rollouts any more, either.

        Args:
            device: Its identifier.
            change: What to change.

        Returns:
            The device after the change.

        Raises:
            UnknownDeviceError: There is none of that name.
            InvalidRequestError: Labels that no selector can name.
            IllegalTransitionError: It was decommissioned, or is not and needs no permission to
                enrol again.
            FleetError: The broker does not answer; the state is saved, so repeat the order.
        """
        now_s, access = self._clock.now_s(), self._access
        target = change.state
        with self._database.transaction() as transaction:
            row = devices.get(transaction, device, lock=True)
            if change.labels is not None:
                kept = {label.key for label in row.labels}
                devices.set_labels(transaction, row, checked_labels(change.labels, kept=kept))
                policy_choices.mark_stale(transaction, device)
            if change.lent is not None:
                row.lent = change.lent
            if change.may_enrol_again is not None:
                devices.readmit(row, allowed=change.may_enrol_again, key_is_gone=change.key_is_gone)
            if target is not None and (target != row.state or target != DeviceState.DECOMMISSIONED):
                devices.move(transaction, device, target, now_s=now_s)
                if target is DeviceState.ENROLLED:
                    penalties.end(transaction, device, now_s=now_s)
                if target is not DeviceState.ENROLLED:
                    rollout_steps.skip_device(
                        transaction, device, reason=f"the device was {target}", now_s=now_s
                    )
            has_certificate = row.certificate_ends_at_s is not None
        if target is DeviceState.ENROLLED:
            restore = access.allow_certificate if has_certificate else access.restore_device
            restore(device)
        elif target is not None:
            access.refuse_device(device)
        return self.get(device)

    def relabel(self, request: LabelRequest) -> LabelsChange:
        """Set and remove labels of several devices, of all of them or of none.

        Args:
            request: Which devices, and which labels.

        Returns:
            What changed, or would.

        Raises:
            InvalidRequestError: It asks for nothing, names devices in two ways or too many, no
                device matches, or a device would get labels that no selector can name.
            SelectorError: The selector cannot be read.
            UnknownDeviceError: There is no device of such a name.
        """
        labelling.check(request)
        with self._database.transaction() as transaction:
            return labelling.relabel(transaction, request, now_s=self._clock.now_s())

    def _shown(
        self, record: DeviceRecord, policy_set: PolicySet, clocks: Mapping[str, float]
    ) -> Device:
        shown = to_schema(record, policy_set, now_s=self._clock.now_s())
        shown.clock_ahead_s = clocks.get(shown.id)
        for model in shown.models:
            if shown.state is DeviceState.ENROLLED and model.phase == FETCHING:
                model.transfer = shown_transfer(self._transfers.of(shown.id, model.name))
        shown.transfer = next((m.transfer for m in shown.models if m.transfer is not None), None)
        shown.peer_fault = _peer_fault(shown, self._peers)
        return shown


def _peer_fault(device: Device, peers: PeersConfig) -> str:
    """Return why the address of a device is told to nobody; empty if it is, or has none."""
    if device.peer_url is None:
        return ""
    if peers.label is None:
        return "peers.label is not set on the controller"
    if peers.label not in device.labels:
        return f"it has no label {peers.label}"
    fault = why_refused(device.peer_url, peers.allowed())
    return fault and f"it {fault}"


def to_schema(record: DeviceRecord, policy_set: PolicySet, *, now_s: float) -> Device:
    """Return a device as the API shows it, with the policies that apply to its models now."""
    row = record.row
    models = [_model(record, item, policy_set) for item in record.models]
    policy = choose_policy(policy_set.policies, record.steady_values, "")
    first = models[0] if models else DeviceModel(
        name="",
        release=None,
        variant=None,
        desired_release=None,
        policy=policy.name if policy is not None else None,
    )  # fmt: skip
    known = {name: getattr(row, name) for name in _SAME}
    errors = [row.last_error, *(model.last_error for model in models)]
    return convert(
        known
        | {
            "profile": row.profile_name,
            "held_out_until_s": record.penalty.until_s if record.penalty else None,
            "held_out_reason": record.penalty.reason if record.penalty else "",
            "labels": record.labels,
            "attributes": record.attributes(now_s=now_s),
            "models": [asdict(model) for model in models],
            "release": first.release,
            "variant": first.variant,
            "desired_release": first.desired_release,
            "drifted": any(model.drifted for model in models),
            "phase": first.phase,
            "waits_for": next((m.waits_for for m in models if m.waits_for), ""),
            "revision": record.revision,
            "policy": first.policy,
            "policy_accepted": first.policy_accepted,
            "last_error": next(filter(None, errors), ""),
        },
        Device,
    )


def _model(record: DeviceRecord, item: ModelRecord, policy_set: PolicySet) -> DeviceModel:
    policy = choose_policy(policy_set.policies, record.steady_values, item.name)
    has_newest = 0 < record.revision <= record.row.reported_revision
    told = item.told
    return DeviceModel(
        name=item.name,
        release=_name(item.reported) or (told.release if told is not None else None),
        variant=told.variant if told is not None else None,
        unloaded=told is not None and told.release is not None and told.variant is None,
        desired_release=_name(item.desired),
        drifted=item.drifted,
        policy=policy.name if policy is not None else None,
        policy_accepted=has_newest and item.policy_generation == policy_set.generation,
        phase=told.phase if told is not None else "",
        waits_for=item.waits_for,
        last_error=told.last_error if told is not None else "",
    )


def _name(release: ReleaseRow | None) -> str | None:
    return f"{release.name}:{release.version}" if release is not None else None
