"""From the transport's thread to the consumer."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from controller.app.inbox import TAKEN_AT_ONCE, Inbox, each
from tests.simulators.patience import PATIENCE_S, finished
from wire.topics import enrol_request, is_telemetry, up
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

    inbox = Inbox(each(take), max_waiting=8, share=20)
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

    inbox = Inbox(each(take))
    inbox.start()
    inbox.put(message(1))
    inbox.put(message(2))
    assert done.wait(PATIENCE_S)
    inbox.stop(PATIENCE_S)
    assert "failed to handle a message on topic/1" in caplog.text


def test_what_comes_soon_after_others_is_handed_over_together() -> None:
    taken: list[int] = []
    came = threading.Semaphore(0)

    def take(received: Sequence[Received]) -> None:
        taken.append(len(received))
        came.release()

    inbox = Inbox(take, gather_s=0.5)
    inbox.start()
    inbox.put(message(1))
    assert came.acquire(timeout=PATIENCE_S)
    inbox.put(message(2))
    inbox.put(message(3))
    assert came.acquire(timeout=PATIENCE_S)
    inbox.stop(PATIENCE_S)
    assert taken == [1, 2]


def test_telemetry_gathers_for_longer_and_holds_up_nothing_else() -> None:
    taken: list[list[str]] = []
    came = threading.Semaphore(0)

    def take(received: Sequence[Received]) -> None:
        taken.append([one.topic for one in received])
        came.release()

    def telemetry(device: str) -> Received:
        return Received(up(device, "telemetry"), b"")

    inbox = Inbox(take, is_patient=is_telemetry, patience_s=3.0)
    inbox.start()
    inbox.put(telemetry("a"))
    assert came.acquire(timeout=PATIENCE_S)
    inbox.put(telemetry("b"))
    inbox.put(message(1))
    inbox.put(telemetry("c"))
    assert came.acquire(timeout=PATIENCE_S)
    assert came.acquire(timeout=PATIENCE_S)
    inbox.stop(PATIENCE_S)
    assert taken == [
        [up("a", "telemetry")],
        ["topic/1"],
        [up("b", "telemetry"), up("c", "telemetry")],
    ]


def test_much_telemetry_waits_no_longer() -> None:
    came = threading.Semaphore(0)
    inbox = Inbox(lambda _: came.release(), is_patient=is_telemetry, patience_s=10 * PATIENCE_S)
    inbox.start()
    inbox.put(Received(up("first", "telemetry"), b""))
    assert came.acquire(timeout=PATIENCE_S)
    for number in range(TAKEN_AT_ONCE):
        inbox.put(Received(up(f"d-{number}", "telemetry"), b""))
    assert came.acquire(timeout=PATIENCE_S)
    inbox.stop(PATIENCE_S)


def test_senders_take_turns_and_a_message_of_one_keeps_its_place() -> None:
    taken: list[str] = []
    done = threading.Event()

    def take(received: Received) -> None:
        taken.append(received.topic.rpartition("/dev/")[2])
        if len(taken) == 12:
            done.set()

    inbox = Inbox(each(take))
    for number in range(10):
        inbox.put(Received(up("loud", "hello") + str(number), b""))
    for device in ("quiet", "calm"):
        inbox.put(Received(up(device, "hello"), b""))
    inbox.start()
    assert done.wait(PATIENCE_S)
    inbox.stop(PATIENCE_S)
    assert taken[:3] == ["loud/up/hello0", "quiet/up/hello", "calm/up/hello"]
    assert taken[3:] == [f"loud/up/hello{number}" for number in range(1, 10)]


@pytest.mark.parametrize(
    ("many", "payload_bytes"), [("", 0), (up("loud", "hello"), 0), (up("loud", "hello"), 400)]
)
def test_one_sender_cannot_fill_the_inbox(
    many: str, payload_bytes: int, caplog: pytest.LogCaptureFixture
) -> None:
    taken: list[str] = []
    done = threading.Event()

    def take(received: Received) -> None:
        taken.append(received.topic)
        if received.topic == up("calm", "presence"):
            done.set()

    inbox = Inbox(each(take), max_waiting=20, max_waiting_bytes=5000, share=0.5)
    for number in range(100):
        inbox.put(Received(many or enrol_request(f"made-up-{number}"), bytes(payload_bytes)))
    inbox.put(Received(up("calm", "presence"), b""))  # waits for nobody
    inbox.start()
    assert done.wait(PATIENCE_S)
    inbox.stop(PATIENCE_S)
    assert len(taken) <= 10 + 1
    assert taken.index(up("calm", "presence")) <= 1
    said = "device loud sends" if many else "those who are not enrolled send"
    assert caplog.text.count(f"{said} more than the controller handles") == 1


def test_an_inbox_that_is_full_of_bytes_makes_the_sender_wait() -> None:
    taken: list[int] = []
    done = threading.Event()

    def take(received: Received) -> None:
        taken.append(len(received.payload))
        if len(taken) == 4:
            done.set()

    inbox = Inbox(each(take), max_waiting_bytes=1000, share=10)
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
    inbox = Inbox(each(lambda _received: None), max_waiting=1, share=2.0)
    inbox.put(message(1))
    sender = threading.Thread(target=inbox.put, args=(message(2),))
    sender.start()
    sender.join(0.1)
    assert sender.is_alive()
    inbox.stop(PATIENCE_S)
    finished(sender)
