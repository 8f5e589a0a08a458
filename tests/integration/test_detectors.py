"""Pictures in, boxes out: detectors with declared postprocessing, built, probed and served."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest

from agent.serve.errors import WorkerLoadError
from controller.cli import main
from packager.package.directory import open_package
from tests.integration.builds import QUICK, built, refused, write_profile
from tests.simulators.detectors import (
    FACE_CELL,
    FACE_SIZE,
    SHAPE_BOX,
    SHAPE_CELL,
    SHAPE_SIZE,
    draw,
    face_anchors,
    face_detector,
    picture,
    shape_detector,
)
from tests.simulators.patience import PATIENCE_S
from tests.simulators.rig import DIGEST, Rig
from wire.package.processing import Suppression
from wire.package.variant import Variant

WHITE, RED, BLUE = (255, 255, 255), (255, 0, 0), (0, 0, 255)
ZOOM = 2
"""Photographs of faces are as many times as large as what the model takes."""

FACE_PREPROCESSING = """\
[image]
source_datatype = "UINT8"
source_layout = "NHWC"
layout = "NCHW"
mean = [127.0]
std = [128.0]
resize = "bilinear"
"""
SHAPE_PREPROCESSING = """\
[image]
source_datatype = "UINT8"
source_layout = "NHWC"
layout = "NCHW"
scale = 0.00392156862745098
resize = "nearest"
"""
FACES = """\
[boxes.suppression]
scores = "scores"
layout = "classes_last"
activation = "softmax"
background = "first"
anchors = "priors.npy"
variances = [0.1, 0.2]
score_threshold = 0.5
"""
SHAPES = """\
[rows]
labels = ["red", "blue"]
[rows.suppression]
scores = "rows"
layout = "classes_last"
boxes = "centre"
objectness = true
score_threshold = 0.5
[columns]
labels = ["red", "blue"]
[columns.suppression]
scores = "columns"
boxes = "centre"
score_threshold = 0.5
[logits.suppression]
scores = "logits"
boxes = "centre"
activation = "sigmoid"
score_threshold = 0.5
class_agnostic = true
"""


class Work(NamedTuple):
    """A folder with a detector, its samples and its declarations."""

    folder: Path
    model: str
    profile: Path

    def command(self, postprocessing: str, *more: str) -> list[str]:
        """Return the arguments of a build with this postprocessing."""
        path = self.folder / f"after-{len(list(self.folder.iterdir()))}.toml"
        path.write_text(postprocessing)
        return [
            "build", str(self.folder / self.model), "-p", str(self.profile), "--float-only",
            "--evaluation", str(self.folder / "samples.npz"), "--metric", "cosine",
            "--preprocessing", str(self.folder / "before.toml"), "--postprocessing", str(path),
            "--cache", str(self.folder / "cache"), *QUICK, *more,
        ]  # fmt: skip


def work(folder: Path, model: str, before: str, samples: list[Any]) -> Work:
    np.savez(folder / "samples.npz", image=np.stack(samples))
    (folder / "before.toml").write_text(before)
    return Work(folder, model, write_profile(folder, "onnxruntime"))


@pytest.fixture(scope="module")
def faces(tmp_path_factory: pytest.TempPathFactory) -> Work:
    folder = tmp_path_factory.mktemp("faces")
    face_detector(folder / "faces.onnx")
    np.save(folder / "priors.npy", face_anchors())
    samples = [photograph((1 + number, 2 * number)) for number in range(9)]
    return work(folder, "faces.onnx", FACE_PREPROCESSING, samples)


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Work:
    folder = tmp_path_factory.mktemp("shapes")
    shape_detector(folder / "shapes.onnx")
    samples = [picture(SHAPE_SIZE, SHAPE_CELL, {(n % 4, n % 6): RED}) for n in range(9)]
    return work(folder, "shapes.onnx", SHAPE_PREPROCESSING, samples)


@pytest.fixture(scope="module")
def face_package(faces: Work) -> Path:
    assert main(faces.command(FACES, "-o", str(faces.folder / "package"))) == 0
    return faces.folder / "package"


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path / "device")
    yield rig
    rig.stop()


def photograph(*cells: tuple[int, int]) -> Any:
    size = FACE_SIZE[0] * ZOOM, FACE_SIZE[1] * ZOOM
    return picture(size, FACE_CELL * ZOOM, dict.fromkeys(cells, WHITE))


def only_variant(package: Path) -> Variant:
    manifest, _ = open_package(package)
    return manifest.variants[0]


def declared_otherwise(one: Variant, output: str, **fields: Any) -> Variant:
    after = dict(one.info.postprocessing or {})
    boxes = after[output].suppression or Suppression(scores="")
    changed = msgspec.structs.replace(boxes, **fields)
    after[output] = msgspec.structs.replace(after[output], suppression=changed)
    return msgspec.structs.replace(
        one, info=msgspec.structs.replace(one.info, postprocessing=after)
    )


def seen(rig: Rig, pixels: Any, output: str, *, status: int = 200) -> Any:
    """Send a picture; return the boxes, indices and scores that come back, or the error."""
    image = pixels[None]
    tensor = {
        "name": "image", "datatype": "UINT8", "shape": image.shape,
        "parameters": {"raw": True, "binary_data_size": image.nbytes},
    }  # fmt: skip
    wanted = [{"name": output, "parameters": {"processed": True}}]
    header = json.dumps({"inputs": [tensor], "outputs": wanted}).encode()
    client = http.client.HTTPConnection("127.0.0.1", rig.port, timeout=PATIENCE_S)
    active = rig.server.active
    assert active is not None
    client.request(
        "POST",
        f"/v2/models/{active.model.name}/infer",
        body=header + image.tobytes(),
        headers={"Inference-Header-Content-Length": str(len(header))},
    )
    response = client.getresponse()
    answer = json.loads(response.read())
    client.close()
    assert response.status == status, answer
    if status != 200:
        return answer["error"]
    parts = {part["name"]: part for part in answer["outputs"]}
    return tuple(
        np.array(parts[name]["data"]).reshape(parts[name]["shape"])
        for name in (output, f"{output}.index", f"{output}.score")
    )


def test_faces_in_a_photograph_come_back_as_corners(
    face_package: Path, rig: Rig, tmp_path: Path
) -> None:
    one = only_variant(face_package)
    assert (face_package / one.directory / "anchors.npy").is_file()
    probed = rig.server.probe(face_package, DIGEST, one)
    assert probed.passed, probed.detail
    rig.server.switch_to(face_package, DIGEST, one)
    photo = photograph((3, 4), (10, 17))
    boxes, index, scores = seen(rig, photo, "boxes")
    first = [3600 + 2 * (row * 20 + column) for row, column in ((3, 4), (10, 17))]
    assert sorted(index.tolist()) == [[0, 1, place] for place in first], "class 0 is no face"
    np.testing.assert_allclose(scores, 1 / (1 + np.exp(-6)), rtol=1e-3)
    expected = []
    for centre_x, centre_y, width, height in face_anchors()[index[:, 2]]:
        x, y = centre_x + 0.5 * 0.1 * width, centre_y - 0.25 * 0.1 * height
        half = width * np.exp(0.2) / 2, height * np.exp(-0.2) / 2
        expected.append((x - half[0], y - half[1], x + half[0], y + half[1]))
    np.testing.assert_allclose(boxes, expected, atol=1e-5)
    pixels = np.array(expected) * [640, 480, 640, 480]
    assert draw(tmp_path / "faces.png", photo, pixels).stat().st_size > 0
    none = seen(rig, photograph(), "boxes")
    assert [part.shape for part in none] == [(0, 4), (0, 3), (0,)]


def test_a_head_with_boxes_and_scores_in_one_output_is_read_in_each_form(
    shapes: Work, rig: Rig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    package = shapes.folder / "package"
    result = built(capsys, shapes.command(SHAPES, "-o", str(package)))
    for output in ("rows", "columns", "logits"):
        assert f"postprocessing of {output!r} keeps 8 boxes on 8 samples" in result["notes"]
    steps = [step["name"] for step in result["steps"]]
    assert len(steps) == len(set(steps)), "the samples are read once"
    rig.server.switch_to(package, DIGEST, only_variant(package))
    pixels = picture(SHAPE_SIZE, SHAPE_CELL, {(1, 2): RED, (3, 5): BLUE})
    expected = {(0, 1 * 6 + 2): (40, 24, *SHAPE_BOX), (1, 3 * 6 + 5): (88, 56, *SHAPE_BOX)}
    for output in ("rows", "columns", "logits"):
        boxes, index, scores = seen(rig, pixels, output)
        centre, half = boxes[:, :2], boxes[:, 2:] / 2
        corners = np.concatenate([centre - half, centre + half], axis=1)
        picture_file = draw(tmp_path / f"{output}.png", pixels, corners)
        assert picture_file.read_bytes()[1:4] == b"PNG"
        found = {(kind, box): tuple(at) for (_, kind, box), at in zip(index, boxes, strict=True)}
        assert found == expected, output
        assert (scores > 0.98).all()


@pytest.mark.parametrize("more", [(), ("--dry-run",)], ids=["build", "dry run"])
def test_a_layout_that_is_declared_wrongly_ends_a_build_before_it_begins(
    faces: Work, capsys: pytest.CaptureFixture[str], more: tuple[str, ...]
) -> None:
    declared = "[boxes.suppression]\nscores = 'scores'\nscore_threshold = 0.5\n"
    said = refused(capsys, faces.command(declared, *more))
    assert (
        "the output 'scores' of [1, 4420, 2] is read as (batch, class, box), the scores of 2 "
        "boxes, but 'boxes' of [1, 4420, 4] has 4420 boxes; "
        'use layout = "classes_last"'
    ) in said


def test_a_dry_run_tries_the_declaration_on_real_answers(
    shapes: Work, capsys: pytest.CaptureFixture[str]
) -> None:
    declared = "[logits.suppression]\nscores = 'logits'\nboxes = 'centre'\n"
    said = refused(capsys, shapes.command(declared, "--dry-run"))
    assert "the scores in this output are -6 to 6, but probabilities are 0 to 1" in said
    assert 'use activation = "sigmoid"' in said
    fitting = shapes.command(declared + "activation = 'sigmoid'\n", "--dry-run")
    assert main(fitting) == 0


def test_anchors_that_do_not_belong_to_the_model_are_refused(
    faces: Work, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(faces.folder / "few.npy", face_anchors()[:896])
    said = refused(capsys, faces.command(FACES.replace("priors", "few"), "--dry-run"))
    assert "there are 896 anchors, but the output of [1, 4420, 4] has 4420 boxes" in said
    said = refused(capsys, faces.command(FACES.replace("priors", "none"), "--dry-run"))
    assert "none.npy" in said


def test_a_build_whose_boxes_are_infinite_is_refused(
    faces: Work, capsys: pytest.CaptureFixture[str]
) -> None:
    face_detector(faces.folder / "wide.onnx", log_size=1000.0)
    said = refused(capsys, faces._replace(model="wide.onnx").command(FACES, "--dry-run"))
    assert "postprocessing of 'boxes': 'boxes' holds NaN or infinity" in said


def test_a_device_refuses_what_it_cannot_process_but_goes_on_serving_what_serves(
    face_package: Path, rig: Rig
) -> None:
    wrong = declared_otherwise(only_variant(face_package), "boxes", layout=msgspec.UNSET)
    probed = rig.server.probe(face_package, DIGEST, wrong)
    assert not probed.passed
    assert 'use layout = "classes_last"' in probed.detail
    rig.server.switch_to(face_package, DIGEST, wrong)
    assert rig.server.probe_active().passed, "its plain answers are right"
    assert "is read as (batch, class, box)" in seen(rig, photograph(), "boxes", status=500)


def test_a_device_refuses_anchors_that_are_no_anchors(face_package: Path, rig: Rig) -> None:
    one = declared_otherwise(only_variant(face_package), "boxes", anchors="model.onnx")
    with pytest.raises(WorkerLoadError, match=r"anchors: 'model.onnx' is not a .npy file"):
        rig.server.probe(face_package, DIGEST, one)
