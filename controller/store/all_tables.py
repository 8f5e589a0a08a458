"""All tables of a controller's database, of the control state and of the telemetry."""

from __future__ import annotations

from typing import Final

from controller.store.access_tables import AuditLogRow
from controller.store.alert_tables import AlertRuleRow
from controller.store.capture_tables import CaptureRow
from controller.store.device_tables import DeviceRow
from controller.store.gate_tables import GateRow
from controller.store.group_tables import DeviceGroupRow
from controller.store.measurement_tables import MeasurementRow
from controller.store.model_tables import DesiredModelRow
from controller.store.notice_tables import RolloutNoticeRow
from controller.store.penalty_tables import DevicePenaltyRow
from controller.store.policy_tables import PolicyRow
from controller.store.rate_tables import StartRateRow
from controller.store.registration_tables import RegistrationRow
from controller.store.release_tables import ReleaseRow
from controller.store.rollout_tables import RolloutRow
from controller.store.saved_query_tables import SavedQueryRow
from controller.store.shadow_tables import ShadowRow
from controller.store.stage_shadow_tables import StageShadowRow
from controller.store.token_tables import EnrolmentTokenRow
from controller.store.waiting_tables import WaitingDeviceRow
from controller.store.work_tables import RolloutWorkRow
from telemetry.server.tables import metadata as telemetry_metadata

_EACH: Final = (
    DeviceRow,
    EnrolmentTokenRow,
    ReleaseRow,
    RolloutRow,
    PolicyRow,
    DesiredModelRow,
    MeasurementRow,
    SavedQueryRow,
    AlertRuleRow,
    CaptureRow,
    GateRow,
    DeviceGroupRow,
    ShadowRow,
    AuditLogRow,
    RolloutNoticeRow,
    RolloutWorkRow,
    StartRateRow,
    WaitingDeviceRow,
    DevicePenaltyRow,
    RegistrationRow,
    StageShadowRow,
)  # one of each module, which declares them all
CONTROL_METADATA: Final = _EACH[0].metadata
ALL_TABLES: Final = (*CONTROL_METADATA.sorted_tables, *telemetry_metadata.sorted_tables)
"""Each after those that it refers to."""
