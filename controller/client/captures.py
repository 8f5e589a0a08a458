"""Requests about samples that devices capture, which only the holder of the key can read."""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from typing import Final

from controller.capture_schemas import Capture, CaptureRequest, KeptSample
from controller.client.connection import segment
from controller.client.listing import Resource

_AT_ONCE: Final = 200


class Captures(Resource):
    """What is captured of each model."""

    def list(self) -> builtins.list[Capture]:
        """Return what is captured, and what is kept of it."""
        return self._api.get("/v1/captures", list[Capture])

    def start(self, model: str, request: CaptureRequest) -> Capture:
        """Ask devices for samples of a model, in place of what was asked before."""
        return self._api.send("PUT", f"/v1/captures/{segment(model)}", Capture, request)

    def stop(self, model: str) -> Capture:
        """Ask for no more samples of a model."""
        return self._api.send("DELETE", f"/v1/captures/{segment(model)}", Capture)

    def samples(self, model: str) -> Iterator[KeptSample]:
        """List the samples of a model by device and name, without what is sealed."""
        path, params = f"/v1/captures/{segment(model)}/samples", {"limit": str(_AT_ONCE)}
        while page := self._api.get(path, list[KeptSample], params):
            yield from page
            params |= {"after_device": page[-1].device, "after_sample": page[-1].sample}

    def sample(self, model: str, device: str, sample: str) -> KeptSample:
        """Return a sample, sealed as it came."""
        path = f"/v1/captures/{segment(model)}/samples/{segment(device)}/{segment(sample)}"
        return self._api.get(path, KeptSample)
