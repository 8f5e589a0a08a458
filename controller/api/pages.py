"""The part of each list that a request may ask for, and how much of it comes at one time."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends

from controller.access_schemas import ApiToken, AuditEntry
from controller.alert_schemas import Alert
from controller.api.paging import AskedPage, PageParameters
from controller.device_schemas import Device
from controller.enrolment_schemas import TokenSummary
from controller.group_schemas import Group
from controller.query_schemas import SavedQuery
from controller.release_schemas import Release
from controller.rollout_schemas import Rollout
from controller.services import sorts

# A list that is short in every fleet comes as a whole, unless somebody asks for less.
AlertPage = Annotated[
    AskedPage[Alert], Depends(PageParameters(sorts.ALERTS, limit=1000, most=10_000))
]
ApiTokenPage = Annotated[
    AskedPage[ApiToken], Depends(PageParameters(sorts.API_TOKENS, limit=10_000, most=10_000))
]
AuditPage = Annotated[
    AskedPage[AuditEntry], Depends(PageParameters(sorts.AUDIT, limit=100, most=1000))
]
DevicePage = Annotated[
    AskedPage[Device], Depends(PageParameters(sorts.DEVICES, limit=10_000, most=100_000))
]
GroupPage = Annotated[
    AskedPage[Group], Depends(PageParameters(sorts.GROUPS, limit=10_000, most=10_000))
]
ReleasePage = Annotated[
    AskedPage[Release], Depends(PageParameters(sorts.RELEASES, limit=10_000, most=10_000))
]
RolloutPage = Annotated[
    AskedPage[Rollout], Depends(PageParameters(sorts.ROLLOUTS, limit=100, most=1000))
]
SavedQueryPage = Annotated[
    AskedPage[SavedQuery], Depends(PageParameters(sorts.SAVED_QUERIES, limit=10_000, most=10_000))
]
TokenPage = Annotated[
    AskedPage[TokenSummary], Depends(PageParameters(sorts.TOKENS, limit=10_000, most=100_000))
]
