"""Raw images in, classes out, through real workers and with an unmodified client."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from agent.serve.errors import WorkerLoadError
from runtime_adapters.processing.declared import Preprocessor
from tests.simulators.packages import variant
from tests.simulators.patience import PATIENCE_S
from tests.simulators.rig import INPUT, Rig
from wire.package.processing import Postprocessing, Preprocessing
from wire.package.tensors import TensorSpec

IMAGE = TensorSpec(name="x", datatype="FP32", shape=(-1, 3, 4, 4))
HOW = Preprocessing(
    source_datatype="UINT8",
    source_layout="NHWC",
    layout="NCHW",
    scale=1 / 255,
    mean=(0.5,),
    std=(0.25,),
    resize="bilinear",
)
ANSWER = Postprocessing(softmax=True, top_k=2, labels=("a", "b", "c", "d"))


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path)
    yield rig
    rig.stop()


def declared(pre: Preprocessing = HOW) -> Any:
    before = variant("first")
    info = msgspec.structs.replace(
        before.info, inputs=(IMAGE,), preprocessing={"x": pre}, postprocessing={"y": ANSWER}
    )
    return msgspec.structs.replace(before, info=info)


def ask(rig: Rig, header: dict[str, Any], raw: bytes) -> tuple[int, Any]:
    client = http.client.HTTPConnection("127.0.0.1", rig.port, timeout=PATIENCE_S)
    content = json.dumps(header).encode()
    headers = {"Inference-Header-Content-Length": str(len(content))}
    client.request("POST", "/v2/models/digits/infer", body=content + raw, headers=headers)
    response = client.getresponse()
    answer = response.status, json.loads(response.read())
    client.close()
    return answer


def tensor(array: Any, **parameters: Any) -> dict[str, Any]:
    size = {"binary_data_size": array.nbytes}
    kind = {"uint8": "UINT8", "float32": "FP32"}[str(array.dtype)]
    described = {"name": "x", "datatype": kind, "shape": array.shape}
    return {**described, "parameters": {**size, **parameters}}


def test_a_raw_image_is_answered_like_the_prepared_one(rig: Rig) -> None:
    rig.use(declared())
    image = np.random.default_rng(0).integers(0, 256, (2, 37, 21, 3), np.uint8)
    status, raw = ask(rig, {"inputs": [tensor(image, raw=True)]}, image.tobytes())
    assert status == 200
    prepared = Preprocessor(IMAGE, HOW)(image)
    status, plain = ask(rig, {"inputs": [tensor(prepared)]}, prepared.tobytes())
    assert status == 200
    assert raw["outputs"] == plain["outputs"]
    wanted = [{"name": "y", "parameters": {"processed": True}}]
    status, answer = ask(
        rig, {"inputs": [tensor(image, raw=True)], "outputs": wanted}, image.tobytes()
    )
    assert status == 200
    assert [part["name"] for part in answer["outputs"]] == ["y", "y.index"]
    scores = np.array(plain["outputs"][0]["data"]).reshape(2, 4)
    assert answer["outputs"][1]["data"] == np.argsort(-scores)[:, :2].ravel().tolist()


def test_the_worker_says_what_prepares_its_inputs(rig: Rig) -> None:
    rig.use(declared())
    active = rig.server.active
    assert active is not None
    engine = active.worker.description["processing"]["engine"]
    assert engine.startswith(("numba ", "numpy: "))


def test_a_raw_input_that_is_malformed_costs_nothing(rig: Rig) -> None:
    rig.use(declared())
    pid = rig.pid
    image = np.zeros((1, 5, 5, 3), np.uint8)
    for parameters in ({"raw": 1}, {"raw": False}, {"raw": None}):
        status, answer = ask(rig, {"inputs": [tensor(image, **parameters)]}, image.tobytes())
        assert status == 400, answer
        assert set(answer) == {"error"}
    many = np.zeros((2_000_000, 1, 1, 3), np.uint8)
    status, answer = ask(rig, {"inputs": [tensor(many, raw=True)]}, many.tobytes())
    assert status == 400
    assert "fewer samples at a time" in answer["error"]
    assert rig.pid == pid


def test_a_declaration_that_cannot_be_applied_is_said_when_the_variant_is_loaded(rig: Rig) -> None:
    wrong = msgspec.structs.replace(HOW, mean=(1.0, 2.0))
    with pytest.raises(WorkerLoadError, match="mean has 2 values"):
        rig.use(declared(wrong))


def test_classification_with_an_unmodified_client(rig: Rig) -> None:
    triton = pytest.importorskip("tritonclient.http")
    rig.use(variant("first"))
    client = triton.InferenceServerClient(rig.endpoint.address)
    assert "classification" in client.get_server_metadata()["extensions"]
    expected = rig.expected("first")[0]
    order = np.argsort(-expected, kind="stable")[:3]
    sent = triton.InferInput("x", INPUT.shape, "FP32")
    sent.set_data_from_numpy(INPUT)
    for binary in (True, False):
        wanted = triton.InferRequestedOutput("y", binary_data=binary, class_count=3)
        found = client.infer("digits", [sent], outputs=[wanted]).as_numpy("y")
        assert found.shape == (1, 3)
        texts = [text.decode() if isinstance(text, bytes) else text for text in found[0]]
        assert texts == [f"{expected[i]:f}:{i}" for i in order]
    client.close()
