"""A declaration's whole way: from the user's file through a build to answers of a real worker."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from controller.cli import main
from packager.package.directory import open_package
from runtime_adapters.protocol import Limits
from runtime_adapters.registry import open_session
from tests.integration.builds import QUICK, built, contents, digits, proven, write_profile
from tests.simulators.patience import PATIENCE_S
from tests.simulators.rig import Rig
from wire.package.manifest import MANIFEST_FILE
from wire.package.processing import Postprocessing

NAMES = tuple("zero one two three four five six seven eight nine".split())  # noqa: SIM905
HOW = Postprocessing(softmax=True, top_k=3, labels=NAMES)
DECLARED = f"[logits]\nsoftmax = true\ntop_k = 3\nlabels = {json.dumps(NAMES)}\n"
LINE = "postprocessing of 'logits': softmax, top_k 3, labels zero one two three ... (10)"


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model, its samples, and two files that declare the same."""
    folder = digits(tmp_path_factory.mktemp("answers"))
    write_profile(folder, "onnxruntime")
    (folder / "how.toml").write_text(DECLARED)
    (folder / "again.toml").write_text(DECLARED)
    return folder


@pytest.fixture(scope="module")
def plain(work: Path) -> Path:
    """A package of the same model and cache without any declaration."""
    assert main(command(work, work / "plain")) == 0
    return work / "plain"


def command(work: Path, output: Path, *more: str) -> list[str]:
    return [
        "build", str(work / "digits.onnx"), "-p", str(work / "box.toml"), "--float-only",
        "--evaluation", str(work / "evaluation.npz"), "--cache", str(work / "cache"),
        "-o", str(output), *QUICK, *more,
    ]  # fmt: skip


def declared(work: Path, output: Path, file: str = "how.toml") -> list[str]:
    return command(work, output, "--postprocessing", str(work / file))


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path / "rig")
    yield rig
    rig.stop()


def ask(rig: Rig, image: Any, **parameters: Any) -> Any:
    client = http.client.HTTPConnection("127.0.0.1", rig.port, timeout=PATIENCE_S)
    sent = {"name": "input", "datatype": "FP32", "shape": image.shape, "data": image.tolist()}
    wanted = {"name": "logits", "parameters": parameters}
    client.request(
        "POST", "/v2/models/digits/infer", json.dumps({"inputs": [sent], "outputs": [wanted]})
    )
    response = client.getresponse()
    answer = json.loads(response.read())
    client.close()
    assert response.status == 200, answer
    return {part["name"]: np.reshape(part["data"], part["shape"]) for part in answer["outputs"]}


def test_a_worker_answers_as_the_builder_declared(
    work: Path, rig: Rig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    package = tmp_path / "package"
    result = built(capsys, declared(work, package))
    assert LINE in result["notes"]
    manifest = proven(package)  # what is declared leaves the golden samples alone
    assert {v.name: v.info.postprocessing for v in manifest.variants} == {
        v.name: {"logits": HOW} for v in manifest.variants
    }
    variant = manifest.variant("onnxruntime-fp32")
    rig.server.switch_to(package, result["digest"], variant)
    with np.load(work / "evaluation.npz") as arrays:
        image = arrays["input"][:4]
    session = open_session(package / variant.directory, variant.info, Limits())
    scores = np.concatenate([session.infer({"input": row[None]})["logits"] for row in image])
    session.close()
    odds = np.exp(scores - scores.max(axis=1, keepdims=True))
    odds /= odds.sum(axis=1, keepdims=True)
    best = np.argsort(-odds, axis=1, kind="stable")[:, :3]

    answer = ask(rig, image, processed=True)
    assert list(answer) == ["logits", "logits.index"]
    assert np.array_equal(answer["logits.index"], best)
    np.testing.assert_allclose(answer["logits"], np.take_along_axis(odds, best, 1), rtol=1e-4)
    np.testing.assert_allclose(ask(rig, image)["logits"], scores, rtol=1e-4, atol=1e-4)
    texts = ask(rig, image, processed=True, classification=1)["logits"].ravel()
    assert [text.split(":")[1:] for text in texts] == [
        [str(number), NAMES[number]] for number in best[:, 0]
    ]


def test_a_declaration_changes_the_manifest_alone_and_always_gives_the_same_bytes(
    work: Path, plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    packages = [tmp_path / "first", tmp_path / "second"]
    for package, file in zip(packages, ("how.toml", "again.toml"), strict=True):
        result = built(capsys, declared(work, package, file))
        assert {step["state"] for step in result["steps"]} == {"cached"}  # no step depends on it
    first, second, without = (contents(package) for package in (*packages, plain))
    assert first == second
    changed = {name for name in first | without if first.get(name) != without.get(name)}
    # Beside it change the documents that tell of it.
    assert {name for name in changed if not name.startswith("materials/")} == {MANIFEST_FILE}
    assert b"postprocessing" not in without[MANIFEST_FILE]
    assert open_package(plain)[0].version != open_package(packages[0])[0].version


def test_a_package_shows_what_it_declares(
    work: Path, plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "report.html"
    built(capsys, [*declared(work, tmp_path / "package"), "--report", str(page)])
    assert "postprocessing of &#39;logits&#39;: softmax, top_k 3" in page.read_text()
    assert main(["package", "show", str(tmp_path / "package")]) == 0
    assert capsys.readouterr().out.endswith(f"\n\nDECLARED\n{LINE}\n")
    assert main(["package", "show", str(plain)]) == 0
    assert "DECLARED" not in capsys.readouterr().out
    assert main(["package", "diff", str(plain), str(tmp_path / "package"), "--json"]) == 1
    difference = json.loads(capsys.readouterr().out)
    assert {v["change"] for v in difference["variants"]} == {"declared"}
    assert all("postprocessing" in v["differs"] for v in difference["variants"])
