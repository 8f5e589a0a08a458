"""Converts scikit-learn estimators and pipelines to ONNX with skl2onnx.

A user's function takes nothing and returns a fitted estimator, or `(estimator, number of features)`
where the estimator does not know it, or `(estimator, number of features, "float64")`. The model
takes one tensor `input` of samples by features, of float32 unless float64 is asked for: features
may differ by less than float32 can tell, until a scaler has subtracted their mean. (scikit-learn's
trees round what they get to float32 themselves.) A pipeline that begins with a CountVectorizer or a
TfidfVectorizer takes texts instead: `input` then has one text for each sample. Nothing is unpickled
here; the function may do so.

Rules:
- The first output holds floats: scores or probabilities by class, as class metrics need them. A
  classifier's `label` follows; where the classes are texts, `class` replaces it, which is the
  position of the class in their order.
- The written file is run: it gives the estimator's answers on random samples. Where two classes
  tie, either is its answer: a forest's votes often do, and float32 may choose another one then.
- Equal estimators give equal bytes.

Source:
    skl2onnx, `convert_sklearn` and its options `zipmap` and `raw_scores`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from packager.errors import ModelError, StepError
from packager.fault_text import one_line, root_of, typed_line
from packager.sources.onnx_model import clamp_ir, model_bytes, strip
from packager.sources.parity import ABSOLUTE, RELATIVE, answers, worst_share
from packager.sources.sklearn_texts import options_of, random_texts, set_locale, vectorizer_of

OPSETS: Final = {"": 18, "ai.onnx.ml": 3}
"""The newest that skl2onnx may write; old versions of ONNX Runtime and others run these too."""

INPUT: Final = "input"
FLOAT32: Final = "float32"
FLOAT64: Final = "float64"
LABEL: Final = "label"
INSTALL: Final = "install it with: pip install 'edgefleet[packager-sklearn]'"
MAX_FEATURES: Final = 1_000_000
MAX_CLASSES_SHOWN: Final = 20

_OTHER_EXPORT: Final = (
    f'let the function return (estimator, number of features, "{FLOAT64}"), or give an ONNX file '
    "that was exported with other options"
)
_OTHER_WORDS: Final = (
    "use the vectorizer's usual token_pattern, tokenizer and preprocessor; with ngram_range, leave "
    "out max_features, max_df, min_df and vocabulary; or give an ONNX file"
)
_MOST_PARTS: Final = 3
_SAMPLES: Final = 256
_SCALES: Final = (0.1, 1.0, 10.0, 100.0)
_MIN_SHARE: Final = 0.99
"""Share of the samples with equal answers: a tree's threshold may lie between float32 numbers."""


def convert(made: object, target: Path) -> tuple[str, ...]:
    """Export an estimator.

    Args:
        made: What a user's function returned.
        target: The ONNX file to write.

    Returns:
        Notes on what was done.

    Raises:
        ModelError: It is not fitted, cannot be exported, or the exported model gives other answers.
        StepError: skl2onnx is not installed.
    """
    estimator, features, dtype = _unpack(made)
    vectorizer = vectorizer_of(estimator)
    model = _exported(estimator, features, dtype, vectorizer)
    classes = getattr(estimator, "classes_", None)
    texts = isinstance(classes, np.ndarray) and classes.dtype.kind not in "iub"
    notes = []
    if dtype == FLOAT64:
        _type_outputs(model)
        notes.append("the model takes float64")
    if isinstance(classes, np.ndarray) and classes.tolist() != list(range(len(classes))):
        listed = ", ".join(str(name) for name in classes[:MAX_CLASSES_SHOWN])
        notes.append(f"scores are in the order of the classes: {listed[:400]}")
    if vectorizer is not None:
        set_locale(model)
        notes.append("the model takes texts, one for each sample")
    _order_outputs(model, texts=texts)
    strip(model)
    clamp_ir(model)
    target.write_bytes(model_bytes(model))
    samples = (
        random_texts(vectorizer, _SAMPLES)
        if vectorizer is not None
        else _random_numbers(estimator, features, dtype)
    )
    _check(estimator, model, target, samples, texts=texts)
    return tuple(notes)


def _unpack(made: object) -> tuple[Any, int, str]:
    try:
        from sklearn.base import BaseEstimator
        from sklearn.exceptions import NotFittedError
        from sklearn.utils.validation import check_is_fitted
    except ImportError as exc:
        raise StepError("scikit-learn is not installed", remedy=INSTALL) from exc
    given = made if isinstance(made, tuple) else (made,)
    estimator = given[0] if 0 < len(given) <= _MOST_PARTS else None
    features = given[1] if len(given) > 1 else None
    dtype = given[-1] if len(given) == _MOST_PARTS else FLOAT32
    if not isinstance(estimator, BaseEstimator):
        raise ModelError(
            "the function returned no scikit-learn estimator",
            remedy="return a fitted estimator, (estimator, number of features) or "
            f'(estimator, number of features, "{FLOAT64}")',
        )
    if dtype not in {FLOAT32, FLOAT64}:
        raise ModelError(
            f"the function asks for inputs of {str(dtype)[:40]!r}",
            remedy=f'write "{FLOAT32}" or "{FLOAT64}"',
        )
    try:
        check_is_fitted(estimator)
    except (NotFittedError, TypeError) as exc:
        raise ModelError(
            f"the {type(estimator).__name__} is not fitted", remedy="fit it in the function"
        ) from exc
    if vectorizer_of(estimator) is not None:
        return estimator, 1, FLOAT32
    count = getattr(estimator, "n_features_in_", None) if features is None else features
    if not isinstance(count, int) or not 0 < count <= MAX_FEATURES:
        raise ModelError(
            f"the {type(estimator).__name__} does not say how many features it takes",
            remedy="return (estimator, number of features); a model of texts is a pipeline that "
            "begins with a CountVectorizer or a TfidfVectorizer",
        )
    return estimator, count, str(dtype)


def _exported(
    estimator: Any,  # noqa: ANN401 - sklearn is untyped
    features: int,
    dtype: str,
    vectorizer: Any | None,  # noqa: ANN401 - sklearn is untyped
) -> Any:  # noqa: ANN401 - onnx is untyped
    try:
        from skl2onnx import convert_sklearn
        from skl2onnx.common.data_types import DoubleTensorType, FloatTensorType, StringTensorType
    except ImportError as exc:
        raise StepError("skl2onnx is not installed", remedy=INSTALL) from exc
    kind = (DoubleTensorType if dtype == FLOAT64 else FloatTensorType)([None, features])
    words: dict[int, Any] = {}
    if vectorizer is not None:
        kind = StringTensorType([None])
        words = {id(vectorizer): options_of(vectorizer)}
    steps = getattr(estimator, "steps", None)  # a pipeline's options are those of its last step
    owner = steps[-1][1] if steps else estimator
    last: Exception | None = None
    for options in _options(estimator):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # skl2onnx calls deprecated parts of scikit-learn
                return convert_sklearn(
                    estimator,
                    "model",
                    [(INPUT, kind)],
                    target_opset=OPSETS,
                    options=(words | ({id(owner): options} if options else {})) or None,
                )
        except NameError as exc:  # an option that this estimator does not have
            last = exc
        except Exception as exc:
            raise ModelError(
                f"skl2onnx cannot convert {type(estimator).__name__}: {typed_line(root_of(exc))}",
                remedy="use numeric features and an estimator that skl2onnx supports, or give an "
                "ONNX file",
            ) from exc
    raise ModelError(f"skl2onnx takes no options for {type(estimator).__name__}") from last


def _options(estimator: Any) -> Iterator[dict[str, bool]]:  # noqa: ANN401 - sklearn is untyped
    """Yield options to try: tensors instead of maps, and raw scores without probabilities.

    Not every estimator has each of these options.
    """
    from sklearn.base import is_classifier

    if is_classifier(estimator):
        if not hasattr(estimator, "predict_proba"):
            yield {"zipmap": False, "raw_scores": True}
            yield {"raw_scores": True}
        yield {"zipmap": False}
    yield {}


def _type_outputs(model: Any) -> None:  # noqa: ANN401 - onnx is untyped
    """Declare outputs as float32 where the operator gives nothing else.

    skl2onnx declares float64, but ONNX's trees and some classifiers answer in float32 whatever they
    take, and ONNX Runtime refuses the difference.
    """
    import onnx

    versions = {opset.domain: opset.version for opset in model.opset_import}
    ends = {value.name: value for value in model.graph.output}
    for node in model.graph.node:
        for place, name in enumerate(node.output):
            if name not in ends:
                continue
            schema = onnx.defs.get_schema(node.op_type, versions[node.domain], node.domain)
            form = schema.outputs[min(place, len(schema.outputs) - 1)]
            if form.type_str == "tensor(float)":
                ends[name].type.tensor_type.elem_type = onnx.TensorProto.FLOAT


def _order_outputs(model: Any, *, texts: bool) -> None:  # noqa: ANN401 - onnx is untyped
    """Put outputs of floats first, and a number in place of a label that is a text.

    Raises:
        ModelError: An output is no tensor.
    """
    from onnx import TensorProto, helper

    floats: list[Any] = []
    others: list[Any] = []
    for value in model.graph.output:
        if not value.type.HasField("tensor_type"):
            raise ModelError(
                f"the output {value.name[:80]!r} is not a tensor",
                remedy="use an estimator with one target",
            )
        is_float = value.type.tensor_type.elem_type in {TensorProto.FLOAT, TensorProto.DOUBLE}
        (floats if is_float else others).append(value)
    if texts:
        others = [helper.make_tensor_value_info("class", TensorProto.INT64, [None])]
        if not floats:
            raise ModelError(
                "the labels of the classifier are texts, and it has no scores",
                remedy="fit it on classes that are numbers",
            )
        node = helper.make_node("ArgMax", [floats[0].name], ["class"], axis=1, keepdims=0)
        model.graph.node.append(node)
    ordered = [*floats, *others]
    del model.graph.output[:]
    model.graph.output.extend(ordered)
    versions = {o.domain: o.version for o in model.opset_import}  # skl2onnx writes some twice
    del model.opset_import[:]
    for domain, version in sorted(versions.items()):
        model.opset_import.add(domain=domain, version=version)


def _check(
    estimator: Any,  # noqa: ANN401 - sklearn is untyped
    model: Any,  # noqa: ANN401 - onnx is untyped
    target: Path,
    samples: NDArray[Any],
    *,
    texts: bool,
) -> None:
    """Compare the exported model with the estimator on random samples.

    Raises:
        ModelError: They differ.
    """
    expected = _expected(estimator, samples)
    found = answers(target, model, {INPUT: samples})
    if texts and LABEL in expected:
        order = {name: place for place, name in enumerate(estimator.classes_.tolist())}
        labels = expected.pop(LABEL)
        expected["class"] = np.array([order[name] for name in labels.tolist()], np.int64)
    for name, values in found.items():
        wanted = expected.get(name)
        if wanted is None:
            continue
        alike = _alike(wanted, values, _tied(estimator, name, values, expected))
        if alike < _MIN_SHARE:
            raise ModelError(
                f"the exported model and {type(estimator).__name__} give different answers: "
                f"{1 - alike:.1%} of {name!r} on random samples",
                remedy=_OTHER_WORDS if samples.dtype.hasobject else _OTHER_EXPORT,
            )


def _random_numbers(estimator: Any, features: int, dtype: str) -> NDArray[Any]:  # noqa: ANN401
    """Return samples of many scales that the estimator takes: some take no negative numbers."""
    random = np.random.default_rng(0)
    scales = np.resize(_SCALES, (_SAMPLES, 1))
    samples: NDArray[Any] = random.standard_normal((_SAMPLES, features)) * scales
    samples = samples.astype(dtype)
    try:
        _expected(estimator, samples)
    except ValueError:
        samples = np.abs(samples)
    return samples


def _tied(
    estimator: Any,  # noqa: ANN401 - sklearn is untyped
    name: str,
    found: NDArray[Any],
    expected: dict[str, NDArray[Any]],
) -> NDArray[np.bool_]:
    """Return for which samples a class that was found scores as much as the estimator's own.

    Args:
        estimator: The estimator, with its classes in order.
        name: The output that holds the classes.
        found: What the exported model answers there.
        expected: What the estimator answers, by output.

    Returns:
        One value for each sample; False where there are no scores by class.
    """
    nothing = np.zeros(len(found), np.bool_)
    scores, classes = expected.get("probabilities"), getattr(estimator, "classes_", None)
    if name not in {LABEL, "class"} or scores is None or not isinstance(classes, np.ndarray):
        return nothing
    if scores.ndim == 1:  # of two classes, the margin of the second
        scores = np.stack([-scores, scores], axis=1)
    order = {each: place for place, each in enumerate(classes.tolist())}
    given = found.reshape(-1).tolist()
    places = given if name == "class" else [order.get(each, -1) for each in given]
    if scores.shape != (len(places), len(classes)) or not set(places) <= set(order.values()):
        return nothing
    best = scores.max(axis=1)
    chosen = scores[np.arange(len(places)), places]
    tied: NDArray[np.bool_] = best - chosen <= ABSOLUTE + RELATIVE * np.abs(best)
    return tied


def _alike(wanted: NDArray[Any], found: NDArray[Any], tied: NDArray[np.bool_]) -> float:
    """Return the share of samples with equal answers, or with another one that ties."""
    rows = wanted.reshape(len(wanted), -1)
    given = found.reshape(len(found), -1)
    if given.shape[1] == 2 and rows.shape[1] == 1:  # noqa: PLR2004 - scores of both classes
        given = given[:, 1:]
    if len(rows) != len(given) or rows.shape != given.shape:
        return 0.0
    if given.dtype.kind != "f":
        return float(((rows == given).all(axis=1) | tied).mean())
    pairs = zip(rows.astype(given.dtype), given, strict=True)
    return float(np.mean([worst_share(row, answer) <= 1 for row, answer in pairs]))


def _expected(estimator: Any, samples: NDArray[Any]) -> dict[str, NDArray[Any]]:  # noqa: ANN401
    """Return what the estimator answers, by the names that skl2onnx gives to outputs.

    Raises:
        ModelError: It fails on numbers.
        ValueError: It refuses these numbers.
    """
    from sklearn.base import is_classifier, is_regressor

    methods: dict[str, tuple[str, ...]] = {"variable": ("transform",)}
    if is_regressor(estimator):
        methods = {"variable": ("predict",)}
    elif is_classifier(estimator):
        methods = {LABEL: ("predict",), "probabilities": ("predict_proba", "decision_function")}
    elif hasattr(estimator, "predict"):
        methods = {LABEL: ("predict",), "scores": ("decision_function", "transform")}
    found = {}
    # Most are fitted on doubles; some then take nothing else.
    doubles = samples.tolist() if samples.dtype.hasobject else samples.astype(np.float64)
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")  # random samples may overflow
            for output, names in methods.items():
                name = next((name for name in names if hasattr(estimator, name)), None)
                if name is not None:
                    answer = getattr(estimator, name)(doubles)
                    sparse = hasattr(answer, "toarray")  # a vectorizer's
                    found[output] = np.asarray(answer.toarray() if sparse else answer)
    except ValueError:
        raise
    except Exception as exc:
        raise ModelError(
            f"the {type(estimator).__name__} fails on a table of numbers: {one_line(exc)}",
            remedy="use an estimator that takes one table of numbers",
        ) from exc
    return found
