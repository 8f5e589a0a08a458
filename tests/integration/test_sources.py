"""What users' functions return: real PyTorch modules and scikit-learn estimators become ONNX."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from packager.errors import ModelError
from packager.sources import onnx_model, pruning, pytorch
from packager.sources import sklearn as sklearn_source
from packager.sources.kinds import made_kind
from packager.sources.onnx_batch import with_one_batch
from packager.sources.parity import answers
from tests.simulators.patience import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]

NETS = '''
import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    """With the shortcut of small residual networks: every other pixel, padded with zeros."""

    def __init__(self, before, after, stride):
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride, 1)
        self.second = nn.Conv2d(after, after, 3, 1, 1)
        self.norm = nn.BatchNorm2d(after)
        self.stride, self.pad = stride, (after - before) // 2

    def forward(self, x):
        y = self.norm(self.second(functional.relu(self.first(x))))
        if self.stride != 1:
            x = functional.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.pad, self.pad))
        return functional.relu(x + y)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, 1, 1)
        self.blocks = nn.Sequential(Block(8, 8, 1), Block(8, 16, 2), nn.Dropout())
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


class Pair(nn.Module):
    def forward(self, x, y):
        return {"sum": x + y, "both": (x * y, (x - y).argmax(1))}


class OneSample(nn.Module):
    def forward(self, x):
        return x.reshape(1, 12) * 2


class Random(nn.Module):
    def forward(self, x):
        return x + torch.rand_like(x)


def net():
    torch.manual_seed(0)
    return Net(), torch.randn(1, 3, 8, 8)


def pair():
    return Pair(), {"x": torch.randn(2, 4), "y": torch.randn(2, 4)}


def named():
    options = {"input_names": ["a", "b"], "output_names": ["p", "q", "r"]}
    return Pair(), (torch.randn(2, 4), torch.randn(2, 4)), options


def one_sample():
    return OneSample(), torch.randn(1, 3, 4)


def random():
    return Random(), torch.randn(2, 4)


def wrong_example():
    return Net(), torch.randn(1, 4)
'''


@pytest.fixture(scope="module")
def nets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    pytest.importorskip("onnxscript", reason="PyTorch's exporter is not installed")
    path = tmp_path_factory.mktemp("nets") / "nets.py"
    path.write_text(NETS)
    space: dict[str, Any] = {"__name__": "nets", "PATH": path}
    exec(compile(NETS, str(path), "exec"), space)  # noqa: S102 - our own text, as a user's module
    return space


def taken(path: Path) -> Any:
    loaded, _ = with_one_batch(onnx_model.load_checked(path))
    cleaned, notes = onnx_model.clean(loaded)
    return onnx_model.facts_of(cleaned, notes)


def test_a_module_becomes_a_model_whose_batch_varies(nets: dict[str, Any], tmp_path: Path) -> None:
    made = nets["net"]()
    assert made_kind(made) == "pytorch"
    target = tmp_path / "m.onnx"
    assert pytorch.convert(pytorch.unpack(made), target) == ("the batch may vary",)
    facts = taken(target)
    assert [(spec.name, spec.shape) for spec in facts.inputs] == [("x", (-1, 3, 8, 8))]
    assert [(spec.name, spec.shape) for spec in facts.outputs] == [("output", (-1, 10))]
    x = np.random.default_rng(0).standard_normal((5, 3, 8, 8)).astype(np.float32)
    torch = nets["torch"]
    with torch.no_grad():
        wanted = made[0].eval()(torch.from_numpy(x)).numpy()
    found = answers(target, onnx.load(target), {"x": x})["output"]
    assert np.allclose(found, wanted, atol=1e-5)


def test_equal_modules_give_equal_bytes_that_tell_nothing(
    nets: dict[str, Any], tmp_path: Path
) -> None:
    target = tmp_path / "here.onnx"
    pytorch.convert(pytorch.unpack(nets["net"]()), target)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "nets.py").write_text(NETS)
    program = (
        "import nets; from pathlib import Path; from packager.sources import pytorch; "
        "pytorch.convert(pytorch.unpack(nets.net()), Path('m.onnx'))"
    )
    subprocess.run(
        [sys.executable, "-c", program],
        cwd=elsewhere,
        env={"PYTHONPATH": f"{ROOT}:{elsewhere}", "PYTHONHASHSEED": "7"},
        check=True,
        capture_output=True,
        timeout=PATIENCE_S,
    )
    content = target.read_bytes()
    assert content == (elsewhere / "m.onnx").read_bytes()
    for text in (b"site-packages", b"nets.py", b"forward", str(tmp_path).encode()):
        assert text not in content


@pytest.mark.parametrize(
    ("name", "inputs", "outputs"),
    [("pair", ["x", "y"], ["sum", "both_0", "both_1"]), ("named", ["a", "b"], ["p", "q", "r"])],
)
def test_inputs_and_outputs_have_names(
    nets: dict[str, Any], tmp_path: Path, name: str, inputs: list[str], outputs: list[str]
) -> None:
    target = tmp_path / "m.onnx"
    pytorch.convert(pytorch.unpack(nets[name]()), target)
    facts = taken(target)
    assert [spec.name for spec in facts.inputs] == inputs
    assert [spec.name for spec in facts.outputs] == outputs
    assert [spec.datatype for spec in facts.outputs] == ["FP32", "FP32", "INT64"]


def test_a_module_for_one_sample_keeps_its_batch(nets: dict[str, Any], tmp_path: Path) -> None:
    target = tmp_path / "m.onnx"
    (note,) = pytorch.convert(pytorch.unpack(nets["one_sample"]()), target)
    assert note.startswith("the batch is fixed at the example's: ")
    assert taken(target).inputs[0].shape == (1, 3, 4)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("name", "text"), [("random", "gives other answers"), ("wrong_example", "fails on its example")]
)
def test_modules_that_cannot_be_taken_are_refused(
    nets: dict[str, Any], tmp_path: Path, name: str, text: str
) -> None:
    with pytest.raises(ModelError, match=text) as caught:
        pytorch.convert(pytorch.unpack(nets[name]()), tmp_path / "m.onnx")
    assert caught.value.remedy
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("items", [0, 1, "text", "names"])
def test_functions_that_return_something_else_are_refused(
    nets: dict[str, Any], items: int | str
) -> None:
    module, example = nets["net"]()
    made = {0: (), 1: (module,), "text": (module, "x"), "names": (module, example, {"names": []})}
    with pytest.raises(ModelError):
        pytorch.unpack(made[items])


def test_pruning_takes_what_it_can_and_leaves_the_rest_working(
    nets: dict[str, Any], tmp_path: Path
) -> None:
    pytest.importorskip("torch_pruning", reason="torch-pruning is not installed")
    module, example = nets["net"]()
    before = sum(parameter.numel() for parameter in module.parameters())
    pruned = pruning.prune(module, example, 0.5)
    assert sum(parameter.numel() for parameter in module.parameters()) == before
    assert pruned.parameters_before == before
    assert pruned.parameters_after < 0.7 * before
    assert pruned.macs_after < 0.7 * pruned.macs_before
    assert "head" in pruned.kept_whole
    assert pruned.module.get_submodule("blocks.0.first").weight.shape[0] == 4
    assert "not trained" in pruned.note
    target = tmp_path / "m.onnx"
    pytorch.convert(pytorch.unpack((pruned.module, example)), target)
    assert taken(target).outputs[0].shape == (-1, 10)


def test_a_pruned_module_is_trained_by_the_users_function(nets: dict[str, Any]) -> None:
    pytest.importorskip("torch_pruning", reason="torch-pruning is not installed")
    torch = nets["torch"]
    module, example = nets["net"]()

    def train(pruned: Any) -> Any:
        optimizer = torch.optim.SGD(pruned.parameters(), 0.1)
        pruned.train()(torch.rand(4, 3, 8, 8)).square().mean().backward()
        optimizer.step()
        return pruned

    first = pruning.prune(module, example, 0.25, train=train)
    second = pruning.prune(module, example, 0.25, train=train)
    untrained = pruning.prune(module, example, 0.25)
    assert first.trained
    assert not first.module.training
    weights = [p.module.head.weight.detach().numpy() for p in (first, second, untrained)]
    assert np.array_equal(weights[0], weights[1])
    assert not np.array_equal(weights[0], weights[2])


@pytest.mark.parametrize(
    ("train", "text"),
    [
        (lambda _: None, "returned a NoneType"),
        (lambda _: 1 / 0, "failed: ZeroDivisionError"),
        (lambda pruned: pruned.stem, "different outputs"),
    ],
)
def test_training_functions_at_fault_are_refused(
    nets: dict[str, Any], train: Callable[[Any], Any], text: str
) -> None:
    pytest.importorskip("torch_pruning", reason="torch-pruning is not installed")
    module, example = nets["net"]()
    with pytest.raises(ModelError, match=text):
        pruning.prune(module, example, 0.5, train=train)


def test_where_nothing_can_be_pruned_that_is_said(nets: dict[str, Any]) -> None:
    pytest.importorskip("torch_pruning", reason="torch-pruning is not installed")
    torch = nets["torch"]
    with pytest.raises(ModelError, match="found no channel"):
        pruning.prune(torch.nn.Linear(4, 2), torch.randn(1, 4), 0.5)


@pytest.fixture(scope="module")
def iris() -> tuple[Any, Any]:
    pytest.importorskip("skl2onnx", reason="skl2onnx is not installed")
    from sklearn.datasets import load_iris

    features, classes = load_iris(return_X_y=True)
    return features, classes


def estimators() -> dict[str, Any]:
    if not pytest.importorskip("sklearn", reason="scikit-learn is not installed"):
        return {}
    from sklearn.cluster import KMeans
    from sklearn.decomposition import PCA
    from sklearn.ensemble import GradientBoostingClassifier, RandomForestRegressor
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.naive_bayes import MultinomialNB
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from sklearn.svm import SVC, LinearSVC

    return {
        "logistic": make_pipeline(StandardScaler(), LogisticRegression()),
        "boosting": GradientBoostingClassifier(n_estimators=5, random_state=0),
        "bayes": MultinomialNB(),
        "svc": SVC(),
        "linear-svc": make_pipeline(StandardScaler(), LinearSVC(random_state=0)),
        "forest": RandomForestRegressor(n_estimators=5, random_state=0),
        "ridge": Ridge(),
        "k-means": KMeans(3, n_init=1, random_state=0),
        "pca": PCA(2),
    }


ANSWERS = {
    "logistic": ["probabilities", "label"],
    "boosting": ["probabilities", "label"],
    "bayes": ["probabilities", "label"],
    "svc": ["probabilities", "label"],
    "linear-svc": ["probabilities", "label"],
    "forest": ["variable"],
    "ridge": ["variable"],
    "k-means": ["scores", "label"],
    "pca": ["variable"],
}


@pytest.mark.parametrize("name", ANSWERS)
def test_estimators_become_models_with_scores_first(
    iris: tuple[Any, Any], tmp_path: Path, name: str
) -> None:
    features, classes = iris
    fitted = estimators()[name].fit(features, classes)
    assert made_kind(fitted) == "scikit-learn"
    target = tmp_path / "m.onnx"
    assert sklearn_source.convert(fitted, target) == ()
    facts = taken(target)
    assert [(spec.name, spec.shape) for spec in facts.inputs] == [("input", (-1, 4))]
    assert [spec.name for spec in facts.outputs] == ANSWERS[name]
    assert facts.outputs[0].datatype == "FP32"
    assert set(facts.domains) <= {"ai.onnx.ml"}
    again = tmp_path / "again.onnx"
    sklearn_source.convert((fitted, 4), again)
    assert again.read_bytes() == target.read_bytes()


@pytest.mark.parametrize("texts", [False, True], ids=["numbers", "texts"])
def test_a_forest_whose_votes_tie_is_no_other_model(tmp_path: Path, texts: bool) -> None:
    pytest.importorskip("skl2onnx", reason="skl2onnx is not installed")
    from sklearn.datasets import load_breast_cancer
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.model_selection import train_test_split

    features, classes = load_breast_cancer(return_X_y=True)
    names = np.array(["malign", "benign"])[classes] if texts else classes
    known, _, right, _ = train_test_split(features, names, test_size=0.5, random_state=0)
    fitted = RandomForestClassifier(n_estimators=20, random_state=0).fit(known, right)
    sklearn_source.convert(fitted, tmp_path / "m.onnx")  # ten votes against ten, in 5 % of samples


@pytest.mark.parametrize("tree", [False, True], ids=["logistic", "tree"])
def test_float64_decides_where_float32_cannot_tell(tmp_path: Path, *, tree: bool) -> None:
    pytest.importorskip("skl2onnx", reason="skl2onnx is not installed")
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from sklearn.tree import DecisionTreeClassifier

    rng = np.random.default_rng(0)
    features = 1.0 + 1e-9 * rng.random((400, 3))  # all the same in float32
    classes = (features[:, 0] > 1.0 + 5e-10).astype(int)
    last = DecisionTreeClassifier(random_state=0) if tree else LogisticRegression(C=1e6)
    fitted = make_pipeline(StandardScaler(), last).fit(features, classes)
    target = tmp_path / "m.onnx"
    notes = sklearn_source.convert((fitted, 3, "float64"), target)
    assert notes == ("the model takes float64",)
    assert [spec.datatype for spec in taken(target).inputs] == ["FP64"]
    fresh = 1.0 + 1e-9 * rng.random((400, 3))
    found = answers(target, onnx.load(target), {"input": fresh})
    assert np.array_equal(found["label"], fitted.predict(fresh))
    assert len(set(found["label"].tolist())) == 2


def test_only_classes_that_score_as_much_tie() -> None:
    class Fitted:
        classes_ = np.array([3, 5, 7])

    expected = {"probabilities": np.array([[0.5, 0.5, 0.0], [0.5, 0.4, 0.1], [0.2, 0.3, 0.5]])}
    found = np.array([5, 5, 7])
    tied = sklearn_source._tied(Fitted(), "label", found, expected)
    assert tied.tolist() == [True, False, True]
    assert not sklearn_source._tied(Fitted(), "label", np.array([5, 5, 9]), expected).any()
    assert not sklearn_source._tied(Fitted(), "probabilities", found, expected).any()


def test_texts_as_classes_become_their_places(iris: tuple[Any, Any], tmp_path: Path) -> None:
    features, classes = iris
    names = np.array(["c", "a", "b"])[classes]
    fitted = estimators()["logistic"].fit(features, names)
    target = tmp_path / "m.onnx"
    (note,) = sklearn_source.convert(fitted, target)
    assert note.endswith("a, b, c")
    found = answers(target, onnx.load(target), {"input": features.astype(np.float32)})
    assert [spec.datatype for spec in taken(target).outputs] == ["FP32", "INT64"]
    assert (fitted.classes_[found["class"]] == fitted.predict(features)).all()


def test_a_counter_of_words_counts_as_scikit_learn_does(
    iris: tuple[Any, Any], tmp_path: Path
) -> None:
    from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer

    known = ["Où est le café ?", "der Fluß ist naß, größer", "a 1st x_y", "żółw i 漢字"]
    asked = np.array(["OÙ CAFÉ fluß größer", "", "ŻÓŁW 漢字 1st X_Y x y", "Où\nnaß"], np.object_)
    for counter in (CountVectorizer(), TfidfVectorizer(), CountVectorizer(ngram_range=(1, 2))):
        counter.fit(known)
        target = tmp_path / "m.onnx"
        notes = sklearn_source.convert(counter, target)
        assert notes == ("the model takes texts, one for each sample",)
        (found,) = answers(target, onnx.load(str(target)), {"input": asked}).values()
        np.testing.assert_allclose(found, counter.transform(asked).toarray(), atol=1e-6)


def test_words_that_the_conversion_would_lose_are_refused(
    iris: tuple[Any, Any], tmp_path: Path
) -> None:
    from sklearn.feature_extraction.text import CountVectorizer

    counter = CountVectorizer(strip_accents="unicode").fit(["crème brûlée", "café noir"])
    with pytest.raises(ModelError) as caught:
        sklearn_source.convert(counter, tmp_path / "m.onnx")
    assert caught.value.remedy


def test_estimators_that_cannot_be_taken_are_refused(iris: tuple[Any, Any], tmp_path: Path) -> None:
    from sklearn.base import BaseEstimator
    from sklearn.feature_extraction.text import HashingVectorizer
    from sklearn.linear_model import LogisticRegression

    class Unsized(BaseEstimator):  # type: ignore[misc]  # scikit-learn is untyped
        def fit(self) -> None:
            self.fitted_ = True

    class Own(BaseEstimator):  # type: ignore[misc]  # scikit-learn is untyped
        n_features_in_ = 4

        def fit(self) -> None:
            self.fitted_ = True

    own, unsized = Own(), Unsized()
    own.fit()
    unsized.fit()
    cases = {
        "not fitted": LogisticRegression(),
        "how many features": unsized,
        "cannot convert a HashingVectorizer": HashingVectorizer(),
        "cannot convert Own": own,
        "no scikit-learn estimator": 3,
        "returned no scikit-learn estimator": (own, 4, "float64", True),
        "inputs of 'float16'": (own, 4, "float16"),
    }
    for text, made in cases.items():
        with pytest.raises(ModelError, match=text) as caught:
            sklearn_source.convert(made, tmp_path / "m.onnx")
        assert caught.value.remedy
