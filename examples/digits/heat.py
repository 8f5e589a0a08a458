"""A device that gets hot under load: it changes its variant, and its client notices nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from examples.digits.box import Box, BoxError, until
from examples.digits.client import Client

WARM_C: Final = 30.0
HOT_C: Final = 78.0
"""Air around the board: a normal day, and a closed cabinet in the sun."""

FEW: Final = 20
"""So many answers show that a variant serves."""


class Heat:
    """Heats one device while a client asks it, and cools it again.

    Args:
        box: A box with a device that runs the model.
        device: Its name.
        model: The name of the model.
    """

    def __init__(self, box: Box, device: str, model: str) -> None:
        self._box = box
        self._device = box.devices[device]
        self._model = model

    def set_policy(self, selector: str) -> None:
        """Let the device follow plain thresholds.

        The digits hardly warm a board, so `adaptive` knows that a lighter variant cools nothing.

        Args:
            selector: Chooses the device.
        """
        self._box.show("policy", "set", "thresholds", "--kind", "rules", "--selector", selector)
        until("the policy", lambda: self._policy() == "rules", 30)

    def run(self, images: Any, labels: Any, heating: Callable[[], None]) -> None:  # noqa: ANN401 - arrays
        """Heat and cool.

        Args:
            images: What the client asks about.
            labels: Which digits these are.
            heating: Called when the air is hot.

        Raises:
            BoxError: A request failed, or one variant answered everything.
        """
        device, before = self._device, self._variant()
        client = Client(device.url, self._model, images, labels).start()
        try:
            until("the first answers", lambda: client.sent > FEW, 20)
            print(f"{device.name} serves {before}; {device.board.temperature_c:.0f} C", flush=True)
            device.board.ambient_c = HOT_C
            print(f"the air around it is now {HOT_C:.0f} C ...", flush=True)
            heating()
            until("a switch", lambda: self._serves(client, other_than=before), 60)
            during = self._variant()
            print(f"  {device.board.temperature_c:.0f} C: serves {during}", flush=True)
            device.board.ambient_c = WARM_C
            print(f"the air around it is {WARM_C:.0f} C again ...", flush=True)
            until("the switch back", lambda: self._variant() == before, 60)
            print(f"  {device.board.temperature_c:.0f} C: serves {before}", flush=True)
            seen = client.variants[before]
            until("answers by it", lambda: client.variants[before] > seen + FEW, 20)
        finally:
            client.stop()
        share = client.right / max(client.sent, 1)
        print(
            f"\nthe client sent {client.sent} requests, {len(client.failures)} failed; "
            f"{share:.1%} of the digits were right; answered by "
            + ", ".join(f"{name}: {count}" for name, count in sorted(client.variants.items()))
        )
        if client.failures:
            raise BoxError(f"requests failed: {client.failures[:3]}")
        if len(client.variants) < 2:  # noqa: PLR2004 - it had to change
            raise BoxError("one variant answered everything")

    def _variant(self) -> str:
        return str(self._box.status(self._device.name)["variant"])

    def _policy(self) -> str:
        return str(self._box.status(self._device.name)["policy"]["kind"])

    def _serves(self, client: Client, *, other_than: str) -> bool:
        others = sum(count for name, count in client.variants.items() if name != other_than)
        return others > FEW and self._variant() != other_than
