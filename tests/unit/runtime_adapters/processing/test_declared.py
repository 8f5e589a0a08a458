"""Raw samples become what an input takes, whatever their size, and never at any price."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime_adapters.errors import InputError
from runtime_adapters.processing.declarations import check_preprocessing
from runtime_adapters.processing.declared import MAX_PREPARED_BYTES, Preprocessor
from runtime_adapters.processing.errors import DeclarationError
from runtime_adapters.processing.numpy_forms import resize_bilinear
from wire.package.processing import Preprocessing, Quantization
from wire.package.tensors import TensorSpec

IMAGE = TensorSpec(name="image", datatype="FP32", shape=(-1, 3, 6, 4))
CODES = TensorSpec(name="image", datatype="INT8", shape=(-1, 6, 4, 3))


def declared(**fields: Any) -> Preprocessing:
    base = {"source_datatype": "UINT8", "source_layout": "NHWC", "layout": "NCHW"}
    return Preprocessing(**{**base, "resize": "bilinear", **fields})


def pixels(*shape: int) -> Any:
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


def test_images_of_any_size_are_resized_normalised_and_moved() -> None:
    prepare = Preprocessor(IMAGE, declared(scale=1 / 255, mean=(0.1, 0.2, 0.3), std=(0.5,)))
    assert prepare.raw == TensorSpec(name="image", datatype="UINT8", shape=(-1, -1, -1, 3))
    raw = pixels(2, 9, 13, 3)
    expected = (resize_bilinear(raw, 6, 4) * np.float32(1 / 255) - [0.1, 0.2, 0.3]) / 0.5
    found = prepare(raw)
    assert found.dtype == np.float32
    assert found.flags.c_contiguous
    np.testing.assert_allclose(found, expected.transpose(0, 3, 1, 2), atol=1e-6)


@given(
    st.permutations("HWC"),
    st.permutations("HWC"),
    st.sampled_from(["bilinear", "nearest"]),
    st.booleans(),
)
def test_each_axis_of_an_image_ends_where_its_letter_stands(
    source: list[str], layout: list[str], resize: str, computes: bool
) -> None:
    sizes, raw_sizes = {"N": 2, "H": 6, "W": 4, "C": 3}, {"N": 2, "H": 5, "W": 7, "C": 3}
    texts = ["".join(("N", *letters)) for letters in (source, layout)]
    spec = TensorSpec(name="image", datatype="FP32", shape=tuple(sizes[a] for a in texts[1]))
    fields = {"source_layout": texts[0], "layout": texts[1], "resize": resize}
    how = declared(**fields, mean=(1.0, 2.0, 3.0) if computes else ())
    plain = declared(layout="NHWC", resize=resize, mean=how.mean)
    straight = Preprocessor(TensorSpec(name="image", datatype="FP32", shape=(2, 6, 4, 3)), plain)
    raw = pixels(*(raw_sizes[a] for a in texts[0]))
    expected = straight(np.einsum(f"{texts[0]}->NHWC", raw))
    assert np.array_equal(Preprocessor(spec, how)(raw), np.einsum(f"NHWC->{texts[1]}", expected))


def test_grey_images_are_resized_with_and_without_channels() -> None:
    raw = pixels(2, 5, 5)
    with_channels = TensorSpec(name="image", datatype="FP32", shape=(-1, 1, 6, 4))
    without = TensorSpec(name="image", datatype="FP32", shape=(-1, 6, 4))
    found = Preprocessor(with_channels, declared(source_layout="NHW"))(raw)
    plain = Preprocessor(without, declared(source_layout="NHW", layout="NHW"))(raw)
    assert np.array_equal(found[:, 0], plain)
    assert np.array_equal(plain, resize_bilinear(raw[..., None], 6, 4)[..., 0])


def test_pixels_that_stay_pixels_are_rounded() -> None:
    spec = TensorSpec(name="image", datatype="UINT8", shape=(1, 6, 4, 3))
    raw = pixels(1, 3, 3, 3)
    found = Preprocessor(spec, declared(layout="NHWC"))(raw)
    assert found.dtype == np.uint8
    assert np.array_equal(found, np.rint(resize_bilinear(raw, 6, 4)))


@pytest.mark.parametrize("resize", ["bilinear", "nearest"])
def test_a_model_of_integers_gets_real_numbers_quantised(resize: str) -> None:
    how = declared(
        layout="NHWC",
        resize=resize,
        mean=(127.5,),
        std=(127.5,),
        quantization=Quantization(scale=(1 / 127,), zero_point=(-1,)),
    )
    found = Preprocessor(CODES, how)(np.full((1, 2, 2, 3), 255, np.uint8))
    assert found.dtype == np.int8
    assert found.flags.c_contiguous
    assert (found == 126).all()


def test_channels_may_have_scales_of_their_own() -> None:
    quantization = Quantization(scale=(1.0, 2.0, 4.0), zero_point=(0,), axis=3)
    how = Preprocessing(source_datatype="FP32", quantization=quantization)
    found = Preprocessor(CODES, how)(np.full((1, 6, 4, 3), 8, np.float32))
    assert found[0, 0, 0].tolist() == [8, 4, 2]


def test_a_request_of_few_bytes_cannot_ask_for_many() -> None:
    prepare = Preprocessor(
        TensorSpec(name="image", datatype="FP32", shape=(-1, 3, 2000, 2000)), declared()
    )
    least = MAX_PREPARED_BYTES // (3 * 2000 * 2000 * 4) + 1
    with pytest.raises(InputError, match="fewer samples at a time"):
        prepare(np.zeros((least, 1, 1, 3), np.uint8))
    wide = np.zeros((1, 1, 12_000, 3), np.uint8)
    with pytest.raises(InputError, match="would take over"):
        prepare(wide)
    assert prepare(np.zeros((1, 1, 1, 3), np.uint8)).shape == (1, 3, 2000, 2000)
    with pytest.raises(InputError, match="has no pixels"):
        prepare(np.zeros((1, 0, 5, 3), np.uint8))


def test_no_sample_gives_no_sample() -> None:
    assert Preprocessor(IMAGE, declared(scale=0.5))(pixels(0, 9, 9, 3)).shape == (0, 3, 6, 4)


def test_pixels_that_are_no_numbers_are_refused() -> None:
    prepare = Preprocessor(IMAGE, declared(source_datatype="FP32"))
    raw = np.ones((1, 2, 2, 3), np.float32)
    raw[0, 0, 0, 0] = np.nan
    with pytest.raises(InputError, match="NaN or infinity"):
        prepare(raw)


def test_bytes_that_are_not_aligned_are_read() -> None:
    prepare = Preprocessor(IMAGE, declared(source_datatype="FP32"))
    raw = np.random.default_rng(0).random((1, 5, 5, 3)).astype(np.float32)
    shifted = np.frombuffer(b"." + raw.tobytes(), np.float32, offset=1).reshape(raw.shape)
    assert not shifted.flags.aligned
    assert np.array_equal(prepare(shifted), prepare(raw))


@pytest.mark.parametrize(
    ("spec", "fields", "text"),
    [
        (IMAGE, {"source_layout": "", "layout": ""}, "only images can be resized"),
        (IMAGE, {"source_layout": "NDWC", "layout": "NCDW"}, "only images can be resized"),
        (TensorSpec(name="image", datatype="FP32", shape=(1, 3, -1, 4)), {}, "no height and width"),
        (IMAGE, {"source_datatype": "INT32"}, "no values between"),
        (IMAGE, {"quantization": Quantization(scale=(1.0,))}, "FP32 cannot be quantized"),
        (CODES, {"layout": "NHWC", "quantization": Quantization(scale=(0.0,))}, "greater than 0"),
        (CODES, {"layout": "NHWC", "quantization": Quantization(scale=(1e-60,))}, "greater than 0"),
        (CODES, {"layout": "NHWC", "quantization": Quantization(scale=())}, "belong to no axis"),
        (
            CODES,
            {"layout": "NHWC", "quantization": Quantization(scale=(1.0,), zero_point=(200,))},
            "not of type INT8",
        ),
        (
            CODES,
            {"layout": "NHWC", "quantization": Quantization(scale=(1.0, 2.0))},
            "2 scales, but axis 1 has 6 elements",
        ),
        (
            CODES,
            {"layout": "NHWC", "quantization": Quantization(scale=(1.0, 2.0), axis=4)},
            "belong to no axis",
        ),
    ],
)  # fmt: skip
def test_a_declaration_that_does_not_fit_is_refused(
    spec: TensorSpec, fields: dict[str, Any], text: str
) -> None:
    with pytest.raises(DeclarationError, match=text) as caught:
        check_preprocessing(spec, declared(**fields))
    assert "\n" not in str(caught.value)
