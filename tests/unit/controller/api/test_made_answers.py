"""An answer that is made while it is sent ends with its client, and gives everything back."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, MutableMapping
from typing import Any

import pytest

from controller.api.made_answers import BLOCK_BYTES, MadeAnswer, Running
from controller.api.places import END
from controller.errors import BusyError

GOES = {"type": "http.disconnect"}


class Client:
    """A client: the server's side of its connection is here."""

    def __init__(self, *, takes: int, leaves: bool = False) -> None:
        self.takes = takes
        self.leaves = leaves
        self.taken: list[bytes] = []
        self.ended = asyncio.Event()
        self.scope: dict[str, Any] = {"type": "http", "state": {END: self.ended.set}}

    async def receive(self) -> dict[str, Any]:
        await self.ended.wait()
        return GOES

    async def send(self, message: MutableMapping[str, Any]) -> None:
        if len(self.taken) == self.takes:
            if not self.leaves:
                await asyncio.Event().wait()
            self.ended.set()
            return
        self.taken += [body] if (body := message.get("body")) else []


class Parts:
    """Makes parts without end, or some; knows whether it was closed."""

    def __init__(self, *sizes: int) -> None:
        self.sizes = sizes
        self.is_closed = False

    def made(self) -> Generator[bytes]:
        try:
            for size in self.sizes:
                yield b"x" * size
            while not self.sizes:
                yield b"x"
        finally:
            self.is_closed = True


def ask(parts: Parts, running: Running, **how: Any) -> Client:
    async def asked() -> Client:
        client = Client(**how)
        answer = MadeAnswer(parts.made(), running, media_type="text/plain", block_s=0.02)
        await asyncio.wait_for(answer(client.scope, client.receive, client.send), 10)
        return client

    return asyncio.run(asked())


def test_all_of_it_is_sent_in_blocks() -> None:
    parts, running = Parts(BLOCK_BYTES + 5, 0, 7), Running(1, "exports")
    client = ask(parts, running, takes=99)
    assert [len(block) for block in client.taken] == [BLOCK_BYTES, 5, 7]
    assert (parts.is_closed, running.count) == (True, 0)


@pytest.mark.parametrize("leaves", [True, False], ids=["leaves", "stalls"])
def test_a_client_that_leaves_or_stalls_gives_its_place_back(leaves: bool) -> None:
    parts, running = Parts(), Running(1, "exports")
    client = ask(parts, running, takes=3, leaves=leaves)
    assert client.ended.is_set(), "its connection has ended"
    assert (len(client.taken), parts.is_closed, running.count) == (3, True, 0)


def test_one_too_many_is_refused() -> None:
    parts, running = Parts(), Running(1, "exports")
    with running.one(), pytest.raises(BusyError, match="1 exports are being made"):
        ask(parts, running, takes=3)
    assert running.count == 0
