"""From the transport's thread to the consumer."""

from __future__ import annotations

import threading

import pytest

from controller.app.inbox import Inbox
from tests.simulators.patience import PATIENCE_S, finished
from wire.transport import Received


def message(number: int) -> Received:
    return Received(f"topic/{number}", b"")


def test_messages_are_taken_in_order_by_one_thread() -> None:
    taken: list[tuple[str, int]] = []
    done = threading.Event()

    def take(received: Received) -> None:
        taken.append((received.topic, threading.get_ident()))
        if len(taken) == 100:
            done.set()

    inbox = Inbox(take, max_waiting=8)
    inbox.start()
    for number in range(100):
        inbox.put(message(number))
    assert done.wait(PATIENCE_S)
    inbox.stop(PATIENCE_S)
    assert [topic for topic, _ in taken] == [f"topic/{n}" for n in range(100)]
    assert len({thread for _, thread in taken}) == 1


def test_a_message_that_breaks_its_handler_does_not_stop_the_next(
    caplog: pytest.LogCaptureFixture,
) -> None:
    done = threading.Event()

    def take(received: Received) -> None:
        if received.topic == "topic/1":
            raise ZeroDivisionError
        done.set()

    inbox = Inbox(take)
    inbox.start()
    inbox.put(message(1))
    inbox.put(message(2))
    assert done.wait(PATIENCE_S)
    inbox.stop(PATIENCE_S)
    assert "failed to handle a message on topic/1" in caplog.text


def test_an_inbox_that_is_full_of_bytes_makes_the_sender_wait() -> None:
    taken: list[int] = []
    done = threading.Event()

    def take(received: Received) -> None:
        taken.append(len(received.payload))
        if len(taken) == 4:
            done.set()

    inbox = Inbox(take, max_waiting_bytes=1000)
    inbox.put(Received("t", bytes(2000)))  # alone, any message has room

    def send() -> None:
        for size_bytes in (500, 400, 600):
            inbox.put(Received("t", bytes(size_bytes)))

    sender = threading.Thread(target=send)
    sender.start()
    sender.join(0.1)
    assert sender.is_alive()
    inbox.start()
    assert done.wait(PATIENCE_S)
    finished(sender)
    inbox.stop(PATIENCE_S)
    assert taken == [2000, 500, 400, 600]


def test_a_full_inbox_makes_the_sender_wait_until_it_stops() -> None:
    inbox = Inbox(lambda _received: None, max_waiting=1)
    inbox.put(message(1))
    sender = threading.Thread(target=inbox.put, args=(message(2),))
    sender.start()
    sender.join(0.1)
    assert sender.is_alive()
    inbox.stop(PATIENCE_S)
    finished(sender)
