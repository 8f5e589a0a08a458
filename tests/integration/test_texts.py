"""Models that take texts: from samples through a build to the answer of a real worker."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from runtime_adapters.golden import load_golden
from runtime_adapters.texts import raw_from_texts
from tests.integration.builds import (
    QUICK,
    built,
    contents,
    proven,
    refused,
    write_profile,
)
from tests.simulators.patience import PATIENCE_S
from tests.simulators.rig import Rig
from wire.package.index import asset_directory

DYNAMIC = "onnxruntime-int8-dynamic-reduced"
SPORT = ("goal", "match", "café", "team", "striker", "größe")
FOOD = ("bread", "soup", "crème", "oven", "spoon", "süß")
MODEL = f"""
import numpy as np


def texts(count, seed):
    random = np.random.default_rng(seed)
    labels = random.integers(0, 2, count)
    words = [{SPORT!r}, {FOOD!r}]
    made = [" ".join(random.choice(words[k], random.integers(2, 9))) + f" {{n}}"
            for n, k in enumerate(labels)]
    return np.array([text.title() if n % 3 else text for n, text in enumerate(made)]), labels


def classifier():
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline

    known, labels = texts(200, 0)
    names = np.array(["sport", "food"])
    net = MLPClassifier((64,), max_iter=200, random_state=0)
    words = TfidfVectorizer(ngram_range=(1, 2))
    return make_pipeline(words, net).fit(known, names[labels])


def samples():
    known, labels = texts(120, 1)
    for start in range(0, 120, 30):
        # the scores' order is that of the sorted names: food, sport
        yield {{"input": known[start : start + 30], "label": 1 - labels[start : start + 30]}}
"""


def normalizer(*, labels: bool = False) -> onnx.ModelProto:
    """A model that looks a word up without case: StringNormalizer, LabelEncoder, a table."""
    table = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    nodes = [
        helper.make_node("Squeeze", ["word", "axis"], ["flat"]),
        helper.make_node(
            "StringNormalizer", ["flat"], ["lower"], case_change_action="LOWER", locale="C.UTF-8"
        ),
        helper.make_node(
            "LabelEncoder", ["lower"], ["place"], domain="ai.onnx.ml",
            keys_strings=["ja", "nein", "vielleicht ö"], values_int64s=[0, 1, 2], default_int64=3,
        ),
        helper.make_node("Gather", ["table", "place"], ["scores"]),
    ]  # fmt: skip
    outputs = [helper.make_tensor_value_info("scores", TensorProto.FLOAT, [None, 3])]
    if labels:
        nodes.append(helper.make_node("Identity", ["lower"], ["said"]))
        outputs.append(helper.make_tensor_value_info("said", TensorProto.STRING, [None]))
    graph = helper.make_graph(
        nodes,
        "words",
        [helper.make_tensor_value_info("word", TensorProto.STRING, [None, 1])],
        outputs,
        [
            helper.make_tensor("axis", TensorProto.INT64, [1], [1]),
            helper.make_tensor("table", TensorProto.FLOAT, table.shape, table.ravel()),
        ],
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


WORDS = ("ja", "NEIN", "Vielleicht Ö", "x", "", "Ja", "nein\0", "🙂")


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model of words, its samples as an archive, and a profile."""
    folder = tmp_path_factory.mktemp("words")
    onnx.save(normalizer(), str(folder / "words.onnx"))
    asked = np.array([f"{WORDS[n % 6]}{n // 24 or ''}" for n in range(60)])
    np.savez(folder / "samples.npz", x=asked[:, None])
    write_profile(folder, "onnxruntime", "openvino")
    return folder


def words_command(folder: Path, output: Path, *more: str) -> list[str]:
    return [
        "build", str(folder / "words.onnx"), "-p", str(folder / "box.toml"),
        "--evaluation", str(folder / "samples.npz"), "--cache", str(folder / "cache"),
        "-o", str(output), "--name", "texts", *QUICK, *more,
    ]  # fmt: skip


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path / "rig")
    yield rig
    rig.stop()


def ask(rig: Rig, body: bytes, header_length: int | None = None) -> tuple[int, Any]:
    client = http.client.HTTPConnection("127.0.0.1", rig.port, timeout=PATIENCE_S)
    headers = {}
    if header_length is not None:
        headers["Inference-Header-Content-Length"] = str(header_length)
    client.request("POST", "/v2/models/texts/infer", body, headers)
    response = client.getresponse()
    answer = json.loads(response.read())
    client.close()
    return response.status, answer


def in_json(name: str, texts: Any, shape: list[int], datatype: str = "BYTES") -> bytes:
    sent = {"name": name, "datatype": datatype, "shape": shape, "data": texts}
    return json.dumps({"inputs": [sent]}).encode()


def ask_raw(rig: Rig, name: str, raw: bytes, shape: list[int]) -> tuple[int, Any]:
    sent = {"name": name, "datatype": "BYTES", "shape": shape}
    parameters = {"parameters": {"binary_data_size": len(raw)}}
    header = json.dumps({"inputs": [sent | parameters]}).encode()
    return ask(rig, header + raw, len(header))


@pytest.mark.thorough
def test_a_classifier_of_texts_from_scikit_learn_answers_over_http(
    rig: Rig, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("skl2onnx", reason="skl2onnx is not installed")
    (tmp_path / "topics.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    profile = write_profile(tmp_path, "onnxruntime", "openvino", "litert")
    names = tmp_path / "names.toml"
    names.write_text('[probabilities]\ntop_k = 1\nlabels = ["food", "sport"]\n')
    package = tmp_path / "package"
    result = built(
        capsys,
        [
            "build", "topics:classifier", "-p", str(profile), "--evaluation", "topics:samples",
            "--cache", str(tmp_path / "cache"), "-o", str(package),
            "--postprocessing", str(names), "--name", "texts", *QUICK, "--keep", DYNAMIC,
        ],
    )  # fmt: skip
    assert "the model takes texts, one for each sample" in result["notes"]
    assert "scores are in the order of the classes: food, sport" in result["notes"]
    assert result["metric"].startswith("top1")
    reasons = {i["candidate"]: i["reason"] for i in result["impossible"]}
    assert "takes texts, which onnxruntime reads, but not openvino" in reasons["openvino-fp16"]
    manifest = proven(package)
    assert not [c["lost"] for c in result["candidates"] if c.get("lost")]
    assert {v.name for v in manifest.variants} >= {"onnxruntime-fp32", DYNAMIC}

    variant = manifest.variant(DYNAMIC)
    tried = rig.server.probe(package, result["digest"], variant)  # as an install does
    assert (tried.passed, tried.detail) == (True, "")
    assert tried.latency_ms is not None
    rig.server.switch_to(package, result["digest"], variant)
    asked = ["Oven bread SOUP spoon crème", "Team striker goal café match"]
    status, answer = ask(rig, in_json("input", asked, [2]))
    assert status == 200
    scores, best = answer["outputs"]
    assert np.reshape(scores["data"], scores["shape"]).argmax(axis=1).tolist() == [0, 1]
    assert best["data"] == [0, 1]
    status, raw = ask_raw(rig, "input", raw_from_texts(asked), [2])
    assert (status, raw["outputs"]) == (200, answer["outputs"])
    named = json.loads(in_json("input", asked, [2]))
    named["outputs"] = [{"name": "probabilities", "parameters": {"classification": 1}}]
    status, answer = ask(rig, json.dumps(named).encode())
    assert status == 200
    assert [text.split(":")[1:] for text in answer["outputs"][0]["data"]] == [
        ["0", "food"],
        ["1", "sport"],
    ]
    client = rig.client()
    client.request("GET", "/v2/models/texts")
    document = json.loads(client.getresponse().read())
    assert document["inputs"] == [{"name": "input", "datatype": "BYTES", "shape": [-1]}]
    client.close()


def test_an_unmodified_tritonclient_sends_texts(
    words: Path, rig: Rig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    triton = pytest.importorskip("tritonclient.http", reason="tritonclient is not installed")
    package = tmp_path / "package"
    result = built(capsys, words_command(words, package))
    variant = proven(package).variant("onnxruntime-fp32")
    rig.server.switch_to(package, result["digest"], variant)
    answers = []
    for binary in (True, False):
        asked = triton.InferInput("word", [2, 1], "BYTES")
        texts = np.array([["Vielleicht Ö"], ["nein"]], np.object_)
        asked.set_data_from_numpy(texts, binary_data=binary)
        with triton.InferenceServerClient(f"127.0.0.1:{rig.port}") as client:
            answers.append(client.infer("texts", [asked]).as_numpy("scores"))
    assert answers[0].shape == (2, 3)
    assert np.array_equal(answers[0], answers[1])
    assert not np.array_equal(answers[0][0], answers[0][1])


def test_a_model_of_words_is_built_and_served_and_bad_texts_cost_nothing(
    words: Path, rig: Rig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    package = tmp_path / "package"
    result = built(capsys, words_command(words, package))
    manifest = proven(package)
    variant = manifest.variant("onnxruntime-fp32")
    assert variant.info.golden is not None
    inputs, _ = load_golden(package / asset_directory(variant.info.golden.asset))
    assert inputs["word"].dtype.kind == "U"
    again = built(capsys, words_command(words, tmp_path / "again"))
    assert again["digest"] == result["digest"]
    assert contents(tmp_path / "again") == contents(package)

    rig.server.switch_to(package, result["digest"], variant)
    worker = rig.server.active.worker.pid if rig.server.active else 0
    status, answer = ask(rig, in_json("word", [[word] for word in WORDS], [len(WORDS), 1]))
    assert status == 200
    rows = np.reshape(answer["outputs"][0]["data"], (len(WORDS), 3))
    assert np.array_equal(rows[0], rows[5])
    assert not np.array_equal(rows[6], rows[1])  # a NUL is a character like others
    long = "ß" * 2**20
    wrong = [
        (in_json("word", ["a"], [1, 1], "FP32"), "but the model declares BYTES"),
        (in_json("word", ["a", "b"], [1, 1]), "does not hold 1 values of BYTES"),
        (in_json("word", [["a", "b"]], [2, 1]), "does not hold 2 values of BYTES"),
        (in_json("word", [1], [1, 1]), "does not hold 1 values of BYTES"),
        (in_json("word", [None], [1, 1]), "does not hold 1 values of BYTES"),
        (in_json("word", ["\ud800"], [1, 1]), "the JSON is not an inference request"),
        (in_json("word", [long], [1, 1]), "text 0 is over 1048576 bytes"),
        (in_json("word", ["a"], [1, 2**31 - 1]), "has shape"),
        (in_json("word", ["a"], [2**31 - 1, 1]), "does not hold"),
    ]
    for body, reason in wrong:
        status, answer = ask(rig, body)
        assert status == 400
        assert reason in answer["error"]
        assert "\n" not in answer["error"]
    raw_wrong = [
        (b"\x01\0\0\0\xff", [1, 1], "text 0 is not UTF-8"),
        (b"\x03\0\0\0\xed\xa0\x80", [1, 1], "text 0 is not UTF-8"),
        (b"\xff\xff\xff\xffa", [1, 1], "text 0 is longer than the raw bytes"),
        (b"\0\0\0\0\x09\0\0\0", [2, 1], "text 1 is longer than the raw bytes"),
        (b"\x01\0\0\0ab", [1, 1], "1 raw bytes follow its 1 texts"),
        (b"", [1, 1], "needs 1 texts"),
        (b"\x01\0\0\0a", [2**31 - 1, 1], "needs 2147483647 texts"),
    ]
    for raw, shape, reason in raw_wrong:
        status, answer = ask_raw(rig, "word", raw, shape)
        assert status == 400
        assert reason in answer["error"]
    assert rig.server.active is not None
    assert rig.server.active.worker.pid == worker


def test_an_output_of_texts_is_refused_with_the_remedy(
    words: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnx.save(normalizer(labels=True), str(tmp_path / "words.onnx"))
    command = words_command(words, tmp_path / "package")
    command[1] = str(tmp_path / "words.onnx")
    line = refused(capsys, command)
    assert "output 'said' has the type STRING, which is not supported" in line
    assert "--postprocessing" in line


def test_a_model_without_texts_takes_no_texts(
    words: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    objects = np.array([["a"], [1]] * 10, np.object_)
    np.savez(tmp_path / "pickled.npz", x=objects)
    command = words_command(words, tmp_path / "package")
    command[command.index("--evaluation") + 1] = str(tmp_path / "pickled.npz")
    assert "is not an .npz archive" in refused(capsys, command)
