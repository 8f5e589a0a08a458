"""The report's page: everything on it, nothing from elsewhere, no latency where it says nothing."""

from __future__ import annotations

import html
import itertools
import math
import re
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import msgspec
import pytest

from packager.device_profiles import load_profile
from packager.judge.gates import Gates, judge
from packager.judge.ranking import MIB
from packager.plan.values import Impossible
from packager.report.marks import MARKS
from packager.report.page import report_page
from packager.report.text import UNKNOWN
from packager.result import BuildResult, CandidateReport
from packager.run.pipeline import StepRecord
from wire.codec import from_json, sha256_hex, to_pretty_json
from wire.package.accuracy import Accuracy, Certainty
from wire.package.performance import Performance
from wire.package.tensors import TensorSpec
from wire.package.variant import Requirements, Variant, VariantInfo

MACHINE = "x86_64 AMD EPYC 9B45 <16 cores> & $x_1$"
PROFILES = tuple(load_profile(n) for n in ("x86-64-vnni", "n100", "rpi4", "visionfive2"))
N100 = PROFILES[1:2]
X86, PI, VISION = ("x86-64-vnni", "n100"), ("rpi4",), ("visionfive2",)
EVERYWHERE = (*X86, *PI)
GATES = Gates(min_retention=0.99, max_latency_ms=3.0)
SPEC = TensorSpec(name="t", datatype="FP32", shape=(-1, 10))
REFERENCE = 0.9165
SVG = "{http://www.w3.org/2000/svg}"
GLYPHS = {m.glyph for m in MARKS.values()}

# name, precision, profiles, KiB, top1, median in ms (None: not measured here), peak in MiB
BUILT: tuple[tuple[str, tuple[str, ...], int, float, float | None, int], ...] = (
    ("onnxruntime-fp32", EVERYWHERE, 1072, 0.9165, 1.242, 84),
    ("onnxruntime-fp16", EVERYWHERE, 541, 0.9165, 1.913, 88),
    ("onnxruntime-int8", EVERYWHERE, 331, 0.9121, 0.691, 82),
    ("onnxruntime-int8-entropy", EVERYWHERE, 331, 0.9148, 0.688, 82),
    ("onnxruntime-int8-percentile", EVERYWHERE, 331, 0.9153, 0.693, 82),
    ("onnxruntime-int8-s8s8", PI, 330, 0.9130, 2.204, 82),
    ("onnxruntime-int8-s8s8-entropy", PI, 330, 0.9146, 2.201, 82),
    ("onnxruntime-int8-s8s8-percentile", PI, 330, 0.9154, 2.214, 82),
    ("onnxruntime-int8-repaired", EVERYWHERE, 401, 0.9160, 0.804, 82),
    ("onnxruntime-int4", EVERYWHERE, 380, 0.8511, 1.402, 86),
    ("openvino-fp16", EVERYWHERE, 552, 0.9165, 0.611, 121),
    ("openvino-int8", EVERYWHERE, 329, 0.9157, 0.402, 131),
    ("openvino-int8-accuracy", EVERYWHERE, 343, 0.9161, 0.431, 131),
    ("litert-fp32", EVERYWHERE, 1064, 0.9165, 1.871, 52),
    ("litert-fp16", EVERYWHERE, 538, 0.9165, 1.880, 53),
    ("litert-int8", EVERYWHERE, 327, 0.9139, 1.322, 49),
    ("litert-int8-dynamic", EVERYWHERE, 330, 0.9159, 1.954, 49),
    ("litert-int4", EVERYWHERE, 204, 0.8702, 2.044, 49),
    ("tvm-fp32-x86-64-v4-vnni", X86[:1], 1190, 0.9165, 1.151, 23),
    ("tvm-fp32-riscv64", VISION, 1204, 0.9165, None, 0),
    ("tvm-int8-riscv64", VISION, 402, 0.9122, None, 0),
    ("iree-fp32-x86-64-v4-vnni", X86[:1], 1145, 0.9165, 7.31, 41),
    ("iree-fp32-aarch64", PI, 1148, 0.9165, None, 0),
    ("iree-int8-aarch64", PI, 389, 0.9120, None, 0),
)
REMARKABLE = "tvm-int8-x86-64-v4-vnni"


def variant(
    name: str, profiles: tuple[str, ...], kib: int, value: float, p50_ms: float | None,
    peak_mib: int, *, metric: str = "top1",
) -> Variant:  # fmt: skip
    exact = value == REFERENCE and "fp32" in name
    performance = None
    if p50_ms is not None:
        performance = Performance(
            latency_p50_ms=p50_ms, latency_p95_ms=p50_ms * 1.17, latency_iqr_ms=p50_ms * 0.03,
            load_ms=31.4, first_inference_ms=p50_ms * 3, peak_memory_bytes=peak_mib * MIB,
            runs=1024, threads=1, machine=MACHINE,
        )  # fmt: skip
    return Variant(
        name=name,
        directory=name,
        info=VariantInfo(
            runtime=name.split("-", maxsplit=1)[0], precision=name.split("-", maxsplit=1)[1],
            model_file="model", inputs=(SPEC,), outputs=(SPEC,), profiles=profiles,
            requirements=Requirements(memory_bytes=peak_mib * MIB), size_bytes=kib * 1024,
            accuracy=Accuracy(
                metric=metric, value=value, reference=REFERENCE, retention=value / REFERENCE,
                agreement=1.0 - (REFERENCE - value) * 2, sqnr_db=None if exact else 24.7,
                worst_error=0.0 if exact else (REFERENCE - value) * 40 + 0.012,
                samples=2000 if p50_ms is not None else 64,
            ),
            performance=performance,
        ),
    )  # fmt: skip


def build_result(*, metric: str = "top1", gates: Gates = GATES) -> BuildResult:
    variants = tuple(variant(*row, metric=metric) for row in BUILT)
    verdicts = judge(
        variants,
        PROFILES,
        gates,
        references=frozenset({"onnxruntime-fp32"}),
        here=frozenset({"x86-64-vnni", "n100"}),
    )
    candidates = [
        CandidateReport(
            name=v.name, runtime=v.info.runtime, precision=v.info.precision,
            planned=v.info.profiles, size_bytes=v.info.size_bytes, accuracy=v.info.accuracy,
            performance=v.info.performance, files_sha256=sha256_hex(v.name.encode()),
            profiles={p: found[v.name] for p, found in verdicts.items() if v.name in found},
        )
        for v in variants
    ]  # fmt: skip
    candidates.append(
        CandidateReport(
            name=REMARKABLE, runtime="tvm", precision="int8", planned=X86[:1],
            lost="compile-tvm-int8-x86-64-v4-vnni: tvm failed: <InternalError>: no lowering & more",
        )
    )  # fmt: skip
    impossible = [
        Impossible(candidate=name, profile=profile, reason=reason)
        for name, profile, reason in (
            ("onnxruntime-int8-reduced", "x86-64-vnni", "8-bit weights are safe with VNNI"),
            ("onnxruntime-int8-s8s8", "x86-64-vnni", "made for aarch64"),
            ("onnxruntime-int8-s8s8-entropy", "x86-64-vnni", "made for aarch64"),
            ("openvino-bf16", "x86-64-vnni", "needs avx512_bf16 or amx_bf16"),
            ("openvino-bf16", "rpi4", "needs avx512_bf16 or amx_bf16"),
            ("tvm-fp32", "rpi4", "onnxruntime serves there; --keep tvm-fp32-aarch64 builds it"),
            ("onnxruntime-fp32", "visionfive2", "the profile has no runtime onnxruntime"),
            ("onnxruntime-int8", "visionfive2", "the profile has no runtime onnxruntime"),
        )
    ]  # fmt: skip
    steps = [
        StepRecord(name="prepare", state="done", seconds=2.31),
        StepRecord(name="data", state="cached"),
    ]
    for row in BUILT:
        steps.append(StepRecord(name=f"build-{row[0]}", state="done", seconds=row[2] / 100))
        steps.append(StepRecord(name=f"evaluate-{row[0]}", state="cached"))
    steps.append(
        StepRecord(name=f"compile-{REMARKABLE}", state="failed", seconds=7.5, reason="tvm failed")
    )
    steps.append(StepRecord(name=f"evaluate-{REMARKABLE}", state="skipped", reason="tvm failed"))
    return BuildResult(
        name="cifar-resnet20", version="0-8317ab6938d9", package="/home/someone/release",
        digest=sha256_hex(b"package"), size_bytes=5 * MIB, signed=True, machine=MACHINE,
        metric=metric, samples=2000, candidates=tuple(candidates), impossible=tuple(impossible),
        notes=(
            "one set of 4000 samples was split: 1000 calibration, 1000 tuning, 2000 gate",
            "onnxruntime-int8-repaired: 3 layers stay in float; retention 0.9995 after 0.9952",
            "<script>alert(1)</script>",
        ),
        steps=tuple(steps),
    )  # fmt: skip


class Balance(HTMLParser):
    """Finds tags that are not closed, or closed in the wrong order."""

    VOID = frozenset({"meta", "link", "br"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: object) -> None:  # noqa: ARG002 - theirs
        self.seen.add(tag)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def result() -> BuildResult:
    return build_result()


@pytest.fixture(scope="module")
def page(result: BuildResult) -> str:
    return report_page(result, PROFILES, gates=GATES)


def section(page: str, profile: str) -> str:
    start = page.index(f'<section id="{profile}">')
    return page[start : page.index("</section>", start)]


def plain(text: str) -> str:
    """Return what a reader sees, without drawings and tags."""
    text = re.sub(r"<svg.*?</svg>|<style.*?</style>", " ", text, flags=re.DOTALL)
    text = re.sub(r"</?(b|span|a)\b[^>]*>", "", text)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", text)).split())


def drawings(text: str) -> list[ET.Element]:
    return [ET.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", text, re.DOTALL)]  # noqa: S314 - ours


def texts(drawing: ET.Element) -> list[str]:
    return [element.text or "" for element in drawing.iter(f"{SVG}text")]


def names(drawing: ET.Element) -> list[tuple[str, float, float]]:
    """Return the names beside the points, with their places."""
    found: list[tuple[str, float, float]] = []
    for element in drawing.iter(f"{SVG}text"):
        text = element.text or ""
        if text[:1] in GLYPHS:
            found.append((text[2:], float(element.attrib["x"]), float(element.attrib["y"])))
    return found


def test_the_page_is_well_formed_and_needs_nothing_else(page: str) -> None:
    balance = Balance()
    balance.feed(page)
    assert balance.open == []
    assert not balance.seen & {"script", "img", "iframe", "object"}
    for link in re.findall(r"""(?:href|src)=["']([^"']*)""", page):
        assert link.startswith(("#", "data:,")), link
    assert all(url.startswith("#") for url in re.findall(r"url\(([^)]*)", page))
    addresses = set(re.findall(r"https?://[^\s\"'<]+", page))
    assert addresses <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert "prefers-color-scheme: dark" in page
    assert "@media print" in page


def test_text_from_elsewhere_is_shown_and_not_obeyed(page: str) -> None:
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "x86_64 AMD EPYC 9B45 <16 cores> & $x_1$" in plain(page)
    told = [e.attrib["aria-label"] for e in drawings(page)]
    assert f"x86-64-vnni: quality by median latency, measured on {MACHINE}" in told


def test_equal_results_give_equal_bytes_and_no_date(page: str, result: BuildResult) -> None:
    report_page(build_result(metric="mae"), N100, gates=GATES)
    again = from_json(to_pretty_json(result), BuildResult)
    assert report_page(again, PROFILES, gates=GATES) == page
    assert not re.search(r"\b20\d\d-\d\d-\d\d|\d\d:\d\d:\d\d", page)
    assert "/home/someone" not in page


def test_each_profile_is_told_what_it_gets_and_why_not_the_rest(
    page: str, result: BuildResult
) -> None:
    for profile in PROFILES:
        text = plain(section(page, profile.name))
        for candidate in result.candidates:
            verdict = candidate.profiles.get(profile.name)
            if verdict is not None:
                assert candidate.name in text
                assert verdict.kept or f"{candidate.name} {verdict.reason}" in text
        for item in result.impossible:
            if item.profile == profile.name:
                assert item.reason in text
    text = plain(section(page, "x86-64-vnni"))
    assert "onnxruntime-int4 retention 0.9286 < 0.9900" in text
    assert "iree-fp32-x86-64-v4-vnni latency 7.310 ms > 3.000 ms" in text
    assert "onnxruntime-int8-s8s8, onnxruntime-int8-s8s8-entropy: made for aarch64" in text
    assert f"{REMARKABLE} compile-tvm-int8-x86-64-v4-vnni: tvm failed: <InternalError>" in text
    assert REMARKABLE not in plain(section(page, "n100"))


def test_what_serves_first_is_of_the_best_quality_and_then_the_fastest(page: str) -> None:
    assert "tvm-fp32-x86-64-v4-vnni serves first" in plain(section(page, "x86-64-vnni"))
    assert "onnxruntime-fp32 serves first" in plain(section(page, "n100"))
    assert plain(page).count("serves first") == 2 + 2 * len(PROFILES)


def test_latency_never_looks_like_that_of_another_device(page: str, result: BuildResult) -> None:
    for name, count in (("x86-64-vnni", 3), ("n100", 3), ("rpi4", 1), ("visionfive2", 1)):
        shown = section(page, name)
        assert len(drawings(shown)) == count
        foreign = count == 1
        assert (f"which is no {name}. So the build dropped no variant" in plain(shown)) == foreign
        assert (f"measured on {MACHINE}" in plain(shown)) != foreign
        if foreign:
            assert "median" not in shown
            assert "peak memory" not in shown
            assert " ms" not in plain(shown).replace(" ms > 3.000 ms", "")
    overview = plain(page[: page.index("<section id=")])
    assert overview.count("not known there") == 2
    assert "rpi4 onnxruntime-fp32 0.9165 1.0000 not known there 1.05 MiB" in overview


def test_what_was_not_measured_says_why(page: str) -> None:
    text = plain(page[page.index("<h2>All figures") :])
    riscv64 = f"64 {UNKNOWN} not measured: built for riscv64"
    assert f"tvm-int8-riscv64 402 KiB 0.9122 0.9953 0.9914 24.7 0.184 {riscv64}" in text
    aarch64 = f"64 {UNKNOWN} not measured: built for aarch64"
    assert f"iree-int8-aarch64 389 KiB 0.9120 0.9951 0.9910 24.7 0.192 {aarch64}" in text
    assert f"{REMARKABLE} {UNKNOWN} {UNKNOWN} compile-tvm-int8" in text
    measured = "2000 0.402 0.470 0.012 31.4 1.206 131 MiB 1024"
    assert f"openvino-int8 329 KiB 0.9157 0.9991 0.9984 24.7 0.044 {measured}" in text


def test_ranges_of_the_figures_and_doubts_are_told(result: BuildResult) -> None:
    bounds = Certainty(
        retention_low=0.9712, retention_high=1.0151, agreement_low=None, agreement_high=None,
        confidence=0.9975, compared=20, samples_needed=1400,
    )  # fmt: skip

    def doubted(candidate: CandidateReport) -> CandidateReport:
        if candidate.name != "openvino-int8":
            return candidate
        assert candidate.accuracy is not None
        verdict = msgspec.structs.replace(
            candidate.profiles["n100"], doubt="cannot tell: <2000> samples are too few"
        )
        return msgspec.structs.replace(
            candidate,
            accuracy=msgspec.structs.replace(candidate.accuracy, certainty=bounds),
            profiles={"n100": verdict},
        )

    told = msgspec.structs.replace(result, candidates=tuple(map(doubted, result.candidates)))
    text = plain(report_page(told, N100))
    assert "openvino-int8 329 KiB 0.9157 0.9991 (0.9712 to 1.0151) 0.9984 24.7" in text
    assert "whichever of 20 candidates is chosen" in text
    assert (
        "The samples cannot tell whether these pass the gates, although their figures do: "
        "openvino-int8: cannot tell: <2000> samples are too few" in text
    )
    assert "In brackets" not in plain(report_page(result, N100))


def test_figures_of_an_earlier_build_name_their_machine(result: BuildResult) -> None:
    def moved(candidate: CandidateReport) -> CandidateReport:
        if candidate.performance is None or candidate.name == "litert-int8":
            return candidate
        there = msgspec.structs.replace(candidate.performance, machine="x86_64 Intel(R) N100")
        return msgspec.structs.replace(candidate, performance=there)

    candidates = tuple(moved(c) for c in result.candidates)
    page = report_page(msgspec.structs.replace(result, candidates=candidates), N100)
    assert f"were measured on x86_64 Intel(R) N100; the package was built on {MACHINE}" in plain(
        page
    )
    assert "litert-int8 327 KiB 0.9139" in plain(page)
    assert f"1024 measured on {MACHINE}" in plain(page)
    latency, size, memory = drawings(section(page, "n100"))
    assert [len(names(d)) for d in (latency, size, memory)] == [8, 9, 8], "not comparable"


def test_notes_steps_and_digests_are_there(page: str, result: BuildResult) -> None:
    text = plain(page)
    for note in result.notes:
        assert note in text
    work_s = 2.31 + 7.5 + sum(row[2] for row in BUILT) / 100
    assert f"52 steps: 25 done, 25 cached, 1 failed, 1 skipped; {work_s:.1f} s of work" in text
    assert "The longest: build-tvm-fp32-riscv64 12.0 s" in text
    assert f"compile-{REMARKABLE} failed 7.5 tvm failed" in text
    assert f"data from the cache {UNKNOWN}" in text
    assert result.digest in text
    assert all(c.files_sha256 in text for c in result.candidates)


def test_every_kept_variant_is_named_and_no_names_overlap(page: str, result: BuildResult) -> None:
    for profile in PROFILES:
        kept = {c.name for c in result.candidates if _is_kept(c, profile.name)}
        for drawing in drawings(section(page, profile.name)):
            placed = names(drawing)
            assert {name for name, _x, _y in placed} == kept
            heights = sorted(y for _name, _x, y in placed)
            assert all(b - a >= 9.0 for a, b in itertools.pairwise(heights))
            width = float(drawing.attrib["viewBox"].split()[2])
            assert all(x + 5.3 * (len(name) + 2) <= width for name, x, _y in placed)


def test_gates_are_lines_or_said_to_be_outside(page: str, result: BuildResult) -> None:
    latency, size, _memory = drawings(section(page, "x86-64-vnni"))
    assert {"retention 0.99", "latency gate 3 ms"} <= set(texts(latency))
    assert "the device's storage (8.00 GiB) lies outside the plot" in plain(
        section(page, "x86-64-vnni")
    )
    assert not any("storage" in text for text in texts(size))
    bare = report_page(result, N100)
    assert "retention 0.99<" not in bare
    gates = Gates(min_retention=0.5, max_size_bytes=1024**2, max_memory_bytes=100 * MIB)
    page = report_page(result, N100, gates=gates)
    latency, size, memory = drawings(section(page, "n100"))
    assert "size gate 1.00 MiB" in texts(size)
    assert "memory gate 100 MiB" in texts(memory)
    assert "retention 0.5 lies outside the plot" in plain(section(page, "n100"))


@pytest.mark.parametrize(
    ("metric", "label"),
    [("mae", "mae"), ("cosine", "worst error (cosine)"), ("own:score", "own:score")],
)
def test_metrics_of_every_kind_are_drawn(metric: str, label: str) -> None:
    page = report_page(build_result(metric=metric), N100, gates=GATES)
    assert all(label in texts(drawing) for drawing in drawings(page))


def test_a_build_without_figures_still_has_a_page(result: BuildResult) -> None:
    lost = tuple(
        CandidateReport(
            name=c.name, runtime=c.runtime, precision=c.precision, planned=c.planned, lost="crashed"
        )
        for c in result.candidates
    )
    empty = msgspec.structs.replace(result, candidates=lost, steps=(), notes=(), impossible=())
    page = report_page(empty, PROFILES, gates=GATES)
    assert drawings(page) == []
    assert "rpi4 nothing 0" in plain(page)
    assert "onnxruntime-fp32 crashed" in plain(section(page, "rpi4"))


def test_values_that_cannot_be_drawn_are_left_out(result: BuildResult) -> None:
    def broken(candidate: CandidateReport) -> CandidateReport:
        if candidate.accuracy is None or candidate.name != "openvino-int8":
            return candidate
        nothing = msgspec.structs.replace(candidate.accuracy, value=math.nan, worst_error=math.inf)
        return msgspec.structs.replace(candidate, accuracy=nothing)

    page = report_page(
        msgspec.structs.replace(result, candidates=tuple(map(broken, result.candidates))), N100
    )
    assert "nan" not in plain(page)
    assert "openvino-int8" not in {
        n for d in drawings(section(page, "n100")) for n, _x, _y in names(d)
    }


def _is_kept(candidate: CandidateReport, profile: str) -> bool:
    return profile in candidate.profiles and candidate.profiles[profile].kept
