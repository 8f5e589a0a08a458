"""Selectors: what they mean, and how they are written. The first grammar means the same as ever."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.domain.attributes import ATTRIBUTES, DeviceValues, Value
from controller.domain.selector_tree import And, Exists, In, Node, Not, leaves, text_of
from controller.domain.selectors import (
    MAX_LABELS,
    Selector,
    checked_labels,
    joined,
    parse_selector,
)
from controller.errors import InvalidRequestError, SelectorError
from tests.selector_trees import trees

ATTRIBUTES_OF_ONE: dict[str, Value] = {
    "id": "cam-1",
    "profile": "rpi4",
    "arch": "aarch64",
    "agent_version": "1.10.0",
    "cpu_count": 4,
    "memory_bytes": 2 * 2**30,
    "runtimes": ("litert", "onnxruntime"),
    "online": "true",
    "silent_s": 120.0,
    "model.detector": "1.2.0",
}
DEVICE = DeviceValues(
    labels={
        "site": "berlin", "canary": "yes", "not": "a", "and": "b", "in": "c", "online": "label",
    },
    attributes=ATTRIBUTES_OF_ONE,
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("", True),
        ("   ", True),
        ("site=berlin", True),
        ("site==berlin", True),
        ("site = berlin , profile = rpi4", True),
        ("site=berlin,profile!=rpi4", False),
        ("site!=paris", True),
        ("rack!=7", True),
        ("arch in (x86_64, aarch64)", True),
        ("arch in (x86_64)", False),
        ("arch not in (x86_64,riscv64)", True),
        ("arch notin (aarch64)", False),
        ("canary", True),
        ("rack", False),
        ("!rack", True),
        ("! canary", False),
        ("id=cam-1", True),
        ("id in (cam-2,cam-3)", False),
        ("not in (a,b)", True),  # labels may be called as words of the grammar
        ("not not in (a)", False),
        ("!not", False),
        ("and=b,in in (c),or notin(d)", True),
        ("not,and", True),
        ("Site=berlin", False),
        ("model.none!=1", True),
    ],
)
def test_what_the_first_grammar_could_say_means_the_same(text: str, meant: bool) -> None:
    assert parse_selector(text).matches(DEVICE) is meant


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("site=berlin and profile=rpi4", True),
        ("site=paris or profile=rpi4", True),
        ("site=paris or site=berlin and rack", False),  # `and` binds more
        ("(site=paris or site=berlin), canary", True),
        ("not (site=paris or rack)", True),
        ("!(site=berlin)", False),
        ("not not canary", True),
        ("not site=berlin", False),
        ("site=ber*", True),
        ("site=BER*", False),
        ("site=b?rlin", True),
        ("site in (x,*lin)", True),
        ("site!=*", False),
        ("rack!=*", True),
        ("agent_version>1.9", True),
        ("agent_version<1.10", False),
        ("agent_version<=1.10", True),
        ("agent_version=1.10", False),  # the text
        ("agent_version=1.10.*", True),
        ("cpu_count>=4", True),
        ("memory_bytes>=2GiB and memory_bytes<2.2GB", True),
        ("memory_bytes=2097152KiB", True),
        ("storage_bytes<1GB", False),  # not known
        ("not storage_bytes<1GB", True),
        ("!storage_bytes", True),
        ("silent_s>1m30s", True),
        ("silent_s<2m", False),
        ("model.detector=1.2.0", True),
        ("model.detector<1.10", True),
        ("model.faces", False),
        ("runtimes=onnx*", True),
        ("runtimes!=litert", False),
        ("online=true", True),
        ("label:online=label", True),
        ("label:site=berlin", True),
    ],
)
def test_what_an_expression_means(text: str, meant: bool) -> None:
    assert parse_selector(text).matches(DEVICE) is meant


@given(trees)
def test_what_is_written_is_read_as_the_same(tree: Node) -> None:
    again = parse_selector(text_of(tree)).tree
    assert again == tree
    assert again is not None
    for leaf in leaves(again):
        assert text_of(tree)[leaf.at] not in " (),!"


def test_joined() -> None:
    assert joined("", "id=a") == "id=a"
    assert joined("a or b", "c", " ") == "(a or b),c"


@pytest.mark.parametrize(
    "text",
    [
        "site=",
        "=berlin",
        "site=berlin,",
        ",site=berlin",
        "site=berlin,,canary",
        "site=berlin profile=rpi4",
        "arch in x86_64",
        "arch in ()",
        "arch in (a,)",
        "arch in (a",
        "site==",
        "a && b",
        "site='berlin'",
        "arin (x)",  # was read as `ar in (x)`
        "x" * 2000,
        ",".join(f"a{n}" for n in range(40)),
    ],
)
def test_what_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(SelectorError) as caught:
        parse_selector(text)
    assert "\n" not in str(caught.value)


def test_a_tree() -> None:
    assert parse_selector("a in (x,y),!b") == Selector(
        And((In(key="a", values=("x", "y")), Not(Exists(key="b")))), "a in (x,y),!b"
    )


@given(st.text(max_size=60))
def test_any_text_is_understood_or_refused(text: str) -> None:
    try:
        selector = parse_selector(text)
    except SelectorError:
        return
    assert isinstance(selector.matches(DEVICE), bool)


@given(st.text(alphabet="abAB01._-:/", min_size=1, max_size=20))
def test_every_label_can_be_selected(value: str) -> None:
    labels = DeviceValues(labels=checked_labels({"key": value}), attributes={})
    assert parse_selector(f"key={value}").matches(labels)
    assert not parse_selector(f"key!={value}").matches(labels)


@pytest.mark.parametrize(
    "labels",
    [
        {"id": "x"},
        {"profile": "x"},
        {"memory_bytes": "1"},
        {"model.digits": "1"},
        {"Key": "x"},
        {"": "x"},
        {"a b": "x"},
        {"a": ""},
        {"a": "x y"},
        {"a": "x,y"},
        {"a": "x" * 129},
        {f"k{n}": "x" for n in range(MAX_LABELS + 1)},
    ],
)
def test_labels_that_no_selector_can_name_are_refused(labels: dict[str, str]) -> None:
    with pytest.raises(InvalidRequestError):
        checked_labels(labels)


def test_labels_of_an_earlier_version_stay_unless_they_never_could_be() -> None:
    labels = {"online": "x", "model.digits": "1"}
    assert checked_labels(labels, kept=labels) == labels
    for name in ("id", "profile", "arch"):
        assert name in ATTRIBUTES
        with pytest.raises(InvalidRequestError):
            checked_labels({name: "x"}, kept=[name])
