"""Records of answered requests, as the router makes them."""

from __future__ import annotations

from agent.serve.answered import Answered, Outcome
from agent.serve.frames import ModelIdentity

MODEL = ModelIdentity(name="digits", version="1")


def answered(  # noqa: PLR0913 - one parameter per figure
    variant: str | None = "a",
    *,
    outcome: Outcome = Outcome.OK,
    total_s: float = 0.03,
    queue_s: float = 0.0,
    compute_s: float = 0.02,
    samples: int = 1,
    joined: int = 1,
    active: ModelIdentity | None = MODEL,
    deferred: bool = False,
    release: str = "digits:1",
    status: int = 200,
    request_bytes: int = 0,
    answer_bytes: int = 0,
) -> Answered:
    """Return the record of a request; without a variant nothing served."""
    return Answered(
        asked_model="digits",
        variant=variant or "none",
        release=release if variant else "none",
        active=active,
        outcome=outcome,
        total_s=total_s,
        queue_s=queue_s,
        compute_s=compute_s,
        samples=samples,
        joined=joined,
        deferred=deferred,
        status=status,
        request_bytes=request_bytes,
        answer_bytes=answer_bytes,
    )
