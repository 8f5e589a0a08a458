"""How a model's outputs become answers, as a user's file declares it: checked before it travels."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from packager.errors import DataError
from packager.samples.declarations import (
    ANCHORS_FILE,
    MAX_FILE_BYTES,
    Declared,
    anchors_file,
    declared_lines,
    read_postprocessing,
)
from wire.package.processing import Postprocessing, Preprocessing, Quantization, Suppression
from wire.package.tensors import TensorSpec
from wire.package.variant import VariantInfo

LOGITS = TensorSpec(name="logits", datatype="FP32", shape=(-1, 10))
BOXES = TensorSpec(name="boxes", datatype="FP32", shape=(1, -1, 4))
SCORES = TensorSpec(name="scores", datatype="UINT8", shape=(1, 3, -1))
TEXT = TensorSpec(name="text", datatype="BYTES", shape=(-1,))
NAMES = tuple(f"kind {number}" for number in range(10))
CLASSES = f"softmax = true\ntop_k = 3\nlabels = {list(NAMES)}\n"
INFO = VariantInfo(
    runtime="null", precision="fp32", model_file="m", inputs=(), outputs=(LOGITS,), size_bytes=0
)


def written(folder: Path, text: str) -> Path:
    path = folder / "postprocessing.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("table", ["logits", "y"])
def test_the_file_has_a_table_per_output(tmp_path: Path, table: str) -> None:
    found = read_postprocessing(written(tmp_path, f"[{table}]\n{CLASSES}"), (LOGITS,))
    assert found == {"logits": Postprocessing(softmax=True, top_k=3, labels=NAMES)}


def test_boxes_name_the_output_with_their_scores(tmp_path: Path) -> None:
    text = """
        [boxes.suppression]
        scores = "scores"
        boxes = "centre"
        iou_threshold = 0.6
        [scores.quantization]
        scale = [0.00390625]
    """
    assert read_postprocessing(written(tmp_path, text), (BOXES, SCORES)) == {
        "boxes": Postprocessing(
            suppression=Suppression(scores="scores", boxes="centre", iou_threshold=0.6)
        ),
        "scores": Postprocessing(quantization=Quantization(scale=(1 / 256,))),
    }


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("[other]\ntop_k = 1", "has no output 'other', only boxes, logits, scores, text"),
        ("[y]\ntop_k = 1", "has no output 'y'"),
        (
            "[logits]\ntopk = 1",
            "unknown field `topk`.*; write one table for each output, with quant",
        ),
        ("[logits]\ntop_k = '1'", "Expected `int`, got `str`"),
        ("[logits]\ntop_k = -1", "postprocessing of 'logits': top_k is -1"),
        ("[logits]\nsoftmax = true\naxis = 2", "there is no axis 2 among 2"),
        ('[logits]\nlabels = ["\\u001b[2J"]', "not a line of text"),
        ("[logits]\nlabels = ['']", "not a line of text"),
        ("[logits]\nlabels = ['cat', 'dog']", "2 labels for 10 classes"),
        ("[logits]\ntop_k = 11", "top_k = 11, but it has 10 classes"),
        ("[logits.quantization]\nscale = [1.0]", "FP32 cannot be quantized"),
        ("[scores]\nsoftmax = true", "UINT8 cannot be the scores of a softmax"),
        ("[scores.quantization]\nscale = [nan]", "must be finite and greater than 0"),
        ("[scores.quantization]\nscale = [1.0]\nzero_point = [256]", "is not of type UINT8"),
        ("[scores.quantization]\nscale = [1.0, 2.0]", "2 scales, but axis 1 has 3 elements"),
        ("[text]\ntop_k = 1", "text cannot be postprocessed"),
        ("[boxes.suppression]", "missing required field `scores`"),
        ("[boxes.suppression]\nscores = 'none'", "no output 'none' with scores"),
        (
            "[boxes.suppression]\nscores = 'scores'\niou_threshold = 2.0",
            "iou_threshold must be 0 to 1",
        ),
        ("[boxes.suppression]\nscores = 'scores'\nboxes = 'polar'", "Invalid enum value 'polar'"),
        ("[logits.suppression]\nscores = 'scores'", "boxes must be \\(batch, box, 4\\)"),
        ("softmax = true", "Expected `object`"),
        ("[logits", "not a postprocessing file"),
        ("[logits]\n" + "#" * MAX_FILE_BYTES, f"postprocessing.toml is over {MAX_FILE_BYTES} b"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(tmp_path: Path, content: str, text: str) -> None:
    path = written(tmp_path, content)
    with pytest.raises(DataError, match=text) as caught:
        read_postprocessing(path, (LOGITS, BOXES, SCORES, TEXT))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


WIDE = TensorSpec(name="wide", datatype="FP32", shape=(1, 84, 8400))
FACES = TensorSpec(name="faces", datatype="FP32", shape=(1, 4420, 2))
PLACES = TensorSpec(name="places", datatype="FP32", shape=(1, 4420, 4))


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (
            "[places.suppression]\nscores = 'faces'",
            "the scores of 2 boxes, but 'places' of .* has 4420 boxes; use layout = .classes_last.",
        ),
        (
            "[wide.suppression]\nscores = 'wide'\nlayout = 'classes_last'",
            "84 boxes with 8396 classes each; use layout = .classes_first.",
        ),
        (
            "[places.suppression]\nscores = 'faces'\nlayout = 'classes_last'\nanchors = 'no.npy'",
            "anchors no.npy: No such file",
        ),
        (
            "[places.suppression]\nscores = 'faces'\nlayout = 'classes_last'\nanchors = 'few.npy'",
            "there are 3 anchors, but the output of .* has 4420 boxes",
        ),
        ("[places.suppression]\nscores = 'faces'\nvariances = [0.1]", "length 2"),
    ],
)
def test_boxes_that_do_not_fit_the_declared_shapes_are_refused(
    tmp_path: Path, content: str, text: str
) -> None:
    np.save(tmp_path / "few.npy", np.ones((3, 4)))
    with pytest.raises(DataError, match=text) as caught:
        read_postprocessing(written(tmp_path, content), (WIDE, FACES, PLACES))
    assert "\n" not in str(caught.value)


def test_anchors_lie_beside_their_file_and_have_one_name_in_the_package(tmp_path: Path) -> None:
    text = "[places.suppression]\nscores = 'faces'\nlayout = 'classes_last'\nanchors = 'p.npy'\n"
    path = written(tmp_path, text)
    assert anchors_file(path) == tmp_path / "p.npy"
    np.save(tmp_path / "p.npy", np.ones((4420, 4), np.float32))
    boxes = read_postprocessing(path, (FACES, PLACES))["places"].suppression
    assert boxes is not None
    assert boxes.anchors == ANCHORS_FILE
    path.write_text(text + text.replace("places", "faces").replace("p.npy", "q.npy"))
    with pytest.raises(DataError, match="names 2 files of anchors"):
        anchors_file(path)
    path.write_text("[places")
    assert anchors_file(path) is None
    assert anchors_file(tmp_path / "none.toml") is None


def test_a_file_that_is_absent_or_no_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "none.toml"
    with pytest.raises(DataError, match=r"none\.toml cannot be read: No such file"):
        read_postprocessing(path, (LOGITS,))
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match=r"none\.toml is not a postprocessing file"):
        read_postprocessing(path, (LOGITS,))


def test_a_name_that_an_answer_needs_may_not_be_taken(tmp_path: Path) -> None:
    taken = TensorSpec(name="logits.index", datatype="INT64", shape=(-1, 1))
    with pytest.raises(DataError, match=r"an output logits\.index already"):
        read_postprocessing(written(tmp_path, f"[logits]\n{CLASSES}"), (LOGITS, taken))


def test_a_variant_holds_what_is_declared_and_nothing_where_nothing_is() -> None:
    assert Declared().put_into(INFO) == INFO
    declared = Declared(postprocessing={"logits": Postprocessing(softmax=True)})
    info = declared.put_into(INFO)
    assert info.postprocessing == {"logits": Postprocessing(softmax=True)}
    assert declared_lines(info) == declared_lines(declared)


def test_a_declaration_is_shown_without_what_is_left_out() -> None:
    declared = Declared(
        preprocessing={
            "x": Preprocessing(
                source_datatype="UINT8",
                scale=1 / 255,
                quantization=Quantization(scale=(0.5,)),
            )
        },
        postprocessing={
            "b": Postprocessing(),
            "a": Postprocessing(softmax=True, top_k=1, labels=tuple("abcdef")),
        },
    )
    assert declared_lines(declared) == (
        "preprocessing of 'x': source_datatype UINT8, scale 0.00392157, quantization (scale 0.5)",
        "postprocessing of 'a': softmax, top_k 1, labels a b c d ... (6)",
        "postprocessing of 'b': none",
    )
    assert declared_lines(msgspec.structs.replace(INFO, preprocessing={})) == ()
