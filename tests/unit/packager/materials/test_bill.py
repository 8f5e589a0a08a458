"""The bill of materials: valid by the standard's schema, complete, equal for equal builds."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import msgspec
import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from hypothesis import given
from hypothesis import strategies as st

from packager.licences import Licence
from packager.materials.bill import bill_bytes
from packager.materials.card import model_card, variant_card
from packager.materials.values import Described, Tool
from tests.simulators.materials import BEST, described, making
from wire.package.accuracy import Certainty, FurtherAccuracy
from wire.package.performance import FieldFigures, Performance


def read(known: Described) -> dict[str, Any]:
    """Write a bill of materials, check it by the schema of the standard, and read it."""
    text = bill_bytes(known).decode()
    fault = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    assert fault is None, fault
    return dict(json.loads(text))


def by_reference(bill: dict[str, Any]) -> dict[str, dict[str, Any]]:
    def all_of(component: dict[str, Any]) -> list[dict[str, Any]]:
        within = [part for child in component.get("components", ()) for part in all_of(child)]
        return [component, *within]

    tops = [bill["metadata"]["component"], *bill["components"]]
    return {part["bom-ref"]: part for top in tops for part in all_of(top)}


def sha256(component: dict[str, Any]) -> str:
    (found,) = component["hashes"]
    assert found["alg"] == "SHA-256"
    return str(found["content"])


def test_it_names_the_model_its_files_its_samples_and_the_tools() -> None:
    known = described(making(licence=Licence(expression="Apache-2.0 OR MIT")))
    parts = by_reference(read(known))
    assert (parts["model"]["name"], parts["model"]["version"]) == ("digits", "1.0.0")
    assert parts["model"]["type"] == "machine-learning-model"
    assert parts["model"]["licenses"][0]["expression"] == "Apache-2.0 OR MIT"
    files = {r.removeprefix("file:"): p for r, p in parts.items() if r.startswith("file:")}
    assert {path: sha256(part) for path, part in files.items()} == known.digests
    assert sha256(parts["given:source"]) == "a" * 64
    assert (parts["given:calibration"]["type"], sha256(parts["given:calibration"])) == (
        "data",
        "1" * 64,
    )
    assert parts["tool:numpy"]["purl"] == "pkg:pypi/numpy@2.0.1"
    assert parts["tool:numpy"]["licenses"][0]["expression"] == "MIT"
    assert parts["tool:gcc"]["version"] == "gcc (D) 12"
    assert "licenses" not in parts["tool:gcc"]


def test_each_variant_depends_on_the_source_and_on_what_made_it() -> None:
    bill = read(described())
    needs = {one["ref"]: set(one.get("dependsOn", ())) for one in bill["dependencies"]}
    assert needs["variant:best"] == {"given:source", "tool:numpy"}
    assert needs["variant:small"] == {"given:source", "tool:gcc", "tool:numpy"}
    assert needs["model"] > {"variant:best", "given:evaluation", "tool:edgefleet"}
    assert set(needs) <= set(by_reference(bill))


def test_the_card_has_the_task_the_tensors_the_samples_and_the_measured_figures() -> None:
    known = described()
    manifest = msgspec.structs.replace(known.manifest, metadata={"metric": "top1"})
    parts = by_reference(read(msgspec.structs.replace(known, manifest=manifest)))
    card = parts["model"]["modelCard"]["modelParameters"]
    assert card["task"] == "classification"
    assert card["datasets"] == [{"ref": "given:calibration"}, {"ref": "given:evaluation"}]
    assert card["inputs"] == [{"format": "x: FP32 [?,4]"}]
    figures = parts["variant:small"]["modelCard"]["quantitativeAnalysis"]["performanceMetrics"]
    assert {"type": "top1", "value": "0.9"} in figures


def test_a_card_tells_no_task_that_the_metric_does_not_show() -> None:
    for metric in ("agreement", "mae", "module:function", ""):
        assert "task" not in model_card((BEST,), metric, ())["modelParameters"]
    assert model_card((BEST,), "miou,axis=1", ())["modelParameters"]["task"] == (
        "semantic segmentation"
    )


def test_a_card_tells_bounds_further_metrics_and_figures_of_the_field() -> None:
    certainty = Certainty(
        retention_low=0.9,
        retention_high=None,
        agreement_low=None,
        agreement_high=None,
        confidence=0.95,
        compared=1,
        samples_needed=0,
    )
    further = FurtherAccuracy(
        output="place", metric="mae", value=0.5, reference=0.5, retention=1.0,
        worst_error=0.0, samples=9,
    )  # fmt: skip
    measured = Performance(
        latency_p50_ms=2.5, latency_p95_ms=3.0, load_ms=1.0, first_inference_ms=1.0,
        peak_memory_bytes=4096, runs=5, threads=1, machine="a board",
    )  # fmt: skip
    assert BEST.info.accuracy is not None
    accuracy = msgspec.structs.replace(BEST.info.accuracy, certainty=certainty, further=(further,))
    field = {"rpi4": FieldFigures(performance=measured, devices=3, at_s=1.0)}
    info = msgspec.structs.replace(BEST.info, accuracy=accuracy, field=field)
    card = variant_card(msgspec.structs.replace(BEST, info=info))
    figures = card["quantitativeAnalysis"]["performanceMetrics"]
    bounded = [f["confidenceInterval"] for f in figures if "confidenceInterval" in f]
    assert bounded == [{"lowerBound": "0.9"}]
    assert {"type": "mae", "value": "0.5", "slice": "place=mae"} in figures
    of_field = {"type": "latency_p50_ms", "value": "2.5", "slice": "on 3 devices of rpi4"}
    assert of_field in figures


def test_a_variant_without_figures_has_no_card() -> None:
    info = msgspec.structs.replace(BEST.info, accuracy=None, performance=None)
    assert variant_card(msgspec.structs.replace(BEST, info=info)) == {}


def test_equal_builds_give_equal_bytes_and_others_another_serial_number() -> None:
    random.seed(1)
    first = bill_bytes(described())
    random.seed(2)
    assert bill_bytes(described()) == first
    other = read(described(making(source="f" * 64)))
    serial = json.loads(first)["serialNumber"]
    assert re.fullmatch(r"urn:uuid:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", serial)
    assert other["serialNumber"] != serial
    assert "timestamp" not in other["metadata"]


@given(
    name=st.text(min_size=1, max_size=40).filter(str.isprintable),
    licences=st.lists(st.text(min_size=1, max_size=20), max_size=3),
)
def test_it_is_valid_whatever_tools_call_themselves(name: str, licences: list[str]) -> None:
    known = making()
    odd = Tool(
        name="odd", version=name, purl="pkg:generic/odd@1", licence=Licence(names=tuple(licences))
    )
    read(described(msgspec.structs.replace(known, tools=(*known.tools, odd))))


@pytest.mark.parametrize("licence", [Licence(), Licence(expression="LicenseRef-own")])
def test_it_is_valid_whatever_the_licence_of_the_model(licence: Licence) -> None:
    read(described(making(licence=licence)))
