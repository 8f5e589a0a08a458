"""What came to manifests after version 1 leaves the others byte for byte as they were."""

from __future__ import annotations

import msgspec
import pytest

from tests.simulators.packages import variant
from wire.codec import to_builtins
from wire.errors import WireFormatError
from wire.package.manifest import Manifest, manifest_from_bytes, manifest_to_bytes
from wire.package.processing import Postprocessing, Preprocessing, Quantization, Suppression
from wire.package.variant import Variant


def with_processing(pre: Preprocessing, post: Postprocessing | None) -> Variant:
    before = variant("a")
    info = msgspec.structs.replace(before.info, preprocessing={"x": pre})
    if post:
        info = msgspec.structs.replace(info, postprocessing={"y": post})
    return msgspec.structs.replace(before, info=info)


def written(one: Variant) -> bytes:
    return manifest_to_bytes(Manifest(name="digits", version="1.0", variants=(one,)))


def test_a_manifest_that_does_without_is_written_as_by_version_1() -> None:
    old = {"source_datatype", "source_layout", "layout", "scale", "mean", "std"}
    one = with_processing(Preprocessing(source_datatype="UINT8", scale=0.5), None)
    assert set(to_builtins(one.info.preprocessing["x"])) == old
    assert "postprocessing" not in to_builtins(one.info)
    content = written(one)
    assert b"quantization" not in content
    assert manifest_from_bytes(content).variants == (one,)


def test_what_is_declared_comes_back() -> None:
    quantization = Quantization(scale=(0.5, 0.25), zero_point=(1,), axis=1)
    one = with_processing(
        Preprocessing(source_datatype="UINT8", resize="nearest", quantization=quantization),
        Postprocessing(
            quantization=quantization,
            softmax=True,
            top_k=5,
            suppression=Suppression(scores="s", boxes="centre"),
            labels=("cat", "dog"),
        ),
    )
    assert manifest_from_bytes(written(one)).variants == (one,)


def test_boxes_that_need_nothing_new_are_written_as_before() -> None:
    old = {
        "scores",
        "boxes",
        "iou_threshold",
        "score_threshold",
        "max_boxes_per_class",
    }
    assert set(to_builtins(Suppression(scores="s"))) == old
    how = Suppression(
        scores="s",
        layout="classes_last",
        objectness=False,
        activation="softmax",
        background="first",
        anchors="anchors.npy",
        variances=(0.1, 0.2),
        class_agnostic=True,
    )
    assert set(to_builtins(how)) - old == {
        "layout",
        "objectness",
        "activation",
        "background",
        "anchors",
        "variances",
        "class_agnostic",
    }
    one = with_processing(Preprocessing(source_datatype="UINT8"), Postprocessing(suppression=how))
    assert manifest_from_bytes(written(one)).variants == (one,)


@pytest.mark.parametrize(
    "newer", [b'"layout": "boxes_only"', b'"layout": 1', b'"scales": [0.1]'], ids=str
)
def test_a_form_of_boxes_that_is_not_known_is_not_read(newer: bytes) -> None:
    how = Suppression(scores="s", layout="classes_last")
    one = with_processing(Preprocessing(source_datatype="UINT8"), Postprocessing(suppression=how))
    content = written(one).replace(b'"layout": "classes_last"', newer)
    assert newer in content
    with pytest.raises(WireFormatError):
        manifest_from_bytes(content)


def test_half_a_declaration_is_not_read() -> None:
    one = with_processing(Preprocessing(source_datatype="UINT8"), Postprocessing(top_k=5))
    newer = written(one).replace(b'"top_k"', b'"top_p"')
    with pytest.raises(WireFormatError, match="top_p"):
        manifest_from_bytes(newer)
