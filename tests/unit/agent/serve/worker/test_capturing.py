"""Which requests a worker captures, within which bounds, and that the operator can open them."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np
import pytest

from agent.serve.capture import Capture
from agent.serve.frames import Load, ModelIdentity
from agent.serve.worker.capturing import Capturer
from runtime_adapters.protocol import Tensors
from runtime_adapters.sample_bytes import from_bytes
from tests.simulators.clock import FakeClock
from wire.capture import MAX_SEALED_BYTES, bound, read_head
from wire.package.tensors import TensorSpec
from wire.package.variant import VariantInfo
from wire.trust.sealing import OpeningKey

KEY, _ = OpeningKey.generate()
ALL = Capture(capture="a" * 32, public_key=KEY.public_key, share=1.0, margin=None, room_bytes=10**6)
LOAD = Load(
    package_directory="p",
    variant_directory="v",
    asset_directory=None,
    info=VariantInfo(
        runtime="null",
        precision="fp32",
        model_file="model.json",
        inputs=(TensorSpec(name="x", datatype="FP32", shape=(-1, 4)),),
        outputs=(TensorSpec(name="scores", datatype="FP32", shape=(-1, 3)),),
        size_bytes=1,
    ),
    threads=1,
    memory_bytes=None,
    model=ModelIdentity(
        name="m", version="1", parameters={"variant": "best", "device": "cam-1", "release": "m:1"}
    ),
)


def request(*margins: float) -> tuple[Tensors, Tensors]:
    """Return a request whose answers have these margins."""
    scores = np.array([[0.0, 0.25, 0.25 + margin] for margin in margins], np.float32)
    return {"x": np.full((len(margins), 4), 0.1, np.float32)}, {"scores": scores}


def never() -> float:
    raise AssertionError("a number was drawn")


def test_without_a_capture_nothing_happens() -> None:
    capturer = Capturer(LOAD, FakeClock(), never)
    capturer.look(None, *request(0.5))
    assert capturer.take() == (None, ())


def test_a_share_is_drawn_and_what_is_taken_can_be_opened() -> None:
    draws: Iterator[float] = iter([0.3, 0.1])
    clock = FakeClock()
    capturer = Capturer(LOAD, clock, lambda: next(draws))
    asked = msgspec.structs.replace(ALL, share=0.2)
    inputs, outputs = request(0.5, 0.7)
    capturer.look(asked, inputs, outputs)
    assert capturer.take() == (None, ())
    capturer.look(asked, inputs, outputs)
    captured, missed = capturer.take()
    assert captured is not None
    assert not missed
    head = read_head(captured.head)
    assert (head.capture, head.device, head.model, head.release, head.variant) == (
        "a" * 32, "cam-1", "m", "m:1", "best",
    )  # fmt: skip
    assert (head.at_s, head.why, head.margin) == (clock.now_s(), "share", None)
    opened = KEY.open(captured.sealed, info=bound(captured.head))
    sample = from_bytes(opened, MAX_SEALED_BYTES)
    assert sample.is_batch
    assert np.array_equal(sample.inputs["x"], inputs["x"])
    assert np.array_equal(sample.outputs["scores"], outputs["scores"])
    assert capturer.take() == (None, ())


@pytest.mark.parametrize(("margins", "found"), [((0.5,), None), ((0.5, 0.0625, 0.5), 0.0625)])
def test_hard_ones_are_those_with_a_low_margin(
    margins: tuple[float, ...], found: float | None
) -> None:
    capturer = Capturer(LOAD, FakeClock())
    capturer.look(msgspec.structs.replace(ALL, margin=0.1), *request(*margins))
    captured, missed = capturer.take()
    assert not missed
    assert (captured is None) == (found is None)
    if captured is not None:
        head = read_head(captured.head)
        assert (head.why, head.margin) == ("margin", found)


def test_what_is_not_taken_is_counted() -> None:
    capturer = Capturer(LOAD, FakeClock())
    capturer.look(msgspec.structs.replace(ALL, room_bytes=100), *request(0.5))
    large = {"x": np.zeros((MAX_SEALED_BYTES // 16, 4), np.float32)}
    capturer.look(msgspec.structs.replace(ALL, room_bytes=10**9), large, {})
    capturer.look(msgspec.structs.replace(ALL, public_key=bytes(32)), *request(0.5))
    capturer.look(msgspec.structs.replace(ALL, margin=0.1), {}, {"scores": np.zeros((1, 1))})
    capturer.look(ALL, *request(0.5))
    capturer.look(ALL, *request(0.5))
    captured, missed = capturer.take()
    assert captured is not None
    assert {each.reason: each.samples for each in missed} == {
        "budget": 1, "too large": 1, "fault": 1, "no scores": 1, "busy": 1,
    }  # fmt: skip


def test_it_takes_a_bounded_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample that takes 10 ms is followed by half a second in which none is taken."""
    clock = FakeClock()
    capturer = Capturer(LOAD, clock)
    capturer.look(ALL, *request(0.5))  # loads what seals
    seal = capturer._seal
    assert seal is not None
    assert capturer.take()[0] is not None

    def slow(*arguments: object) -> object:
        clock.advance(0.01)
        return seal(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(capturer, "_seal", slow)
    taken = 0
    for _ in range(1000):
        capturer.look(ALL, *request(0.5))
        taken += capturer.take()[0] is not None
        clock.advance(0.001)
    assert 2 <= taken <= 3
