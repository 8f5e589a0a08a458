"""The cache, and steps in processes of their own that crash, hang and eat memory."""

from __future__ import annotations

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from packager.errors import BuildError, CacheError, ModelError, StepError
from packager.plan.values import Step
from packager.run.cache import ENTRY_FILE, Cache
from packager.run.job import RESULT_FILE
from packager.run.pipeline import Pipeline, Source, Toolchain
from packager.run.process import StepLimits

TOOLCHAIN = Toolchain(tools={"t": "1"}, code="c", machine="m")


def pipeline(root: Path, *, tools: Toolchain = TOOLCHAIN, jobs: int = 2, **limits: Any) -> Pipeline:
    source = root / "model.onnx"
    source.write_bytes(b"")
    return Pipeline(
        {"source": Source(path=source, sha256="0" * 64)},
        cache=Cache(root / "cache"),
        toolchain=tools,
        limits=StepLimits(**limits),
        executor=ThreadPoolExecutor(jobs),
        jobs=jobs,
        progress=lambda _line: None,
    )


def keep(cache: Cache, key: str, content: bytes = b"{}") -> Path:
    with cache.workspace("step") as workspace:
        output = workspace / "output"
        output.mkdir()
        (output / RESULT_FILE).write_bytes(content)
        return cache.keep(key, output)[0]


def test_an_entry_is_found_again_and_a_damaged_one_is_not(tmp_path: Path) -> None:
    cache, key = Cache(tmp_path), "ab" * 32
    assert cache.find(key) is None
    folder = keep(cache, key)
    assert cache.find(key) is not None
    (folder / RESULT_FILE).write_bytes(b"[]")
    assert cache.find(key) is None
    assert not folder.exists()


def test_what_is_no_plain_file_or_of_another_step_is_damaged(tmp_path: Path) -> None:
    cache, key, other = Cache(tmp_path), "ab" * 32, "cd" * 32
    for damage in (lambda path: path.symlink_to("/dev/zero"), os.mkfifo):
        for name in (RESULT_FILE, ENTRY_FILE):
            place = keep(cache, key) / name
            place.unlink()
            damage(place)
            assert cache.find(key) is None
    (tmp_path / "steps" / other[:2]).mkdir()
    keep(cache, key).rename(tmp_path / "steps" / other[:2] / other)
    assert cache.find(other) is None


def test_a_removed_entry_is_made_again(tmp_path: Path) -> None:
    cache, key = Cache(tmp_path), "ab" * 32
    cache.remove(key)
    keep(cache, key, b"1")
    cache.remove(key)
    assert cache.find(key) is None
    assert (keep(cache, key, b"2") / RESULT_FILE).read_bytes() == b"2"


def test_the_slower_of_two_builds_takes_what_the_other_made(tmp_path: Path) -> None:
    cache, key = Cache(tmp_path), "ab" * 32
    assert keep(cache, key, b"1") == keep(cache, key, b"2")
    assert (keep(cache, key) / RESULT_FILE).read_bytes() == b"1"
    assert [p.name for p in (tmp_path / "work").iterdir()] == ["lock"]


def test_builds_that_share_a_cache_do_not_disturb_each_other(tmp_path: Path) -> None:
    keys = [f"{number:02x}" * 32 for number in range(40)]

    def one_build(_: int) -> list[bool]:
        cache = Cache(tmp_path)
        made = [cache.find(key) or keep(cache, key) for key in keys]
        return [
            bool(one) and cache.find(key) is not None for one, key in zip(made, keys, strict=True)
        ]

    with ThreadPoolExecutor(8) as builds:
        assert all(all(found) for found in builds.map(one_build, range(8)))


def test_what_a_killed_build_left_is_removed_and_what_lives_is_not(tmp_path: Path) -> None:
    left = tmp_path / "work" / "prepare-killed"
    left.mkdir(parents=True)
    (left / "half").write_bytes(b"")
    with Cache(tmp_path).workspace("a") as living, Cache(tmp_path).workspace("b"):
        assert not left.exists()
        assert living.exists()


def test_a_cache_that_cannot_be_written_is_a_clear_fault(tmp_path: Path) -> None:
    (tmp_path / "work").write_bytes(b"a file")
    with (
        pytest.raises(BuildError, match="cache cannot be written"),
        Cache(tmp_path).workspace("step"),
    ):
        pass


def test_a_cache_that_cannot_be_written_any_more_ends_the_build(tmp_path: Path) -> None:
    run = pipeline(tmp_path)
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "work").write_bytes(b"a file")
    with pytest.raises(CacheError, match="cache cannot be written"):
        run.run([Step(name="one", kind="inspect", inputs={"model": "source"}, vital=False)])


def test_a_fault_of_the_model_comes_out_of_its_process_as_such(tmp_path: Path) -> None:
    run = pipeline(tmp_path)
    with pytest.raises(ModelError, match="file is empty"):
        run.run([Step(name="inspect", kind="inspect", inputs={"model": "source"}, vital=True)])


def test_a_step_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    run = pipeline(tmp_path, timeout_s=0.02)
    with pytest.raises(StepError, match=r"inspect: this step took longer than 0\.02 s"):
        run.run([Step(name="inspect", kind="inspect", inputs={"model": "source"}, vital=True)])


def test_a_step_that_eats_memory_fails_alone(tmp_path: Path) -> None:
    run = pipeline(tmp_path, memory_bytes=8 * 1024**2)
    step = Step(name="inspect", kind="inspect", inputs={"model": "source"})
    run.run([step, Step(name="next", kind="inspect", inputs={"model": "inspect"})])
    assert [record.state for record in run.records] == ["failed", "skipped"]
    assert run.lost("next") == run.lost("inspect")


def test_a_crash_costs_only_what_depends_on_it(tmp_path: Path) -> None:
    run = pipeline(tmp_path)
    run.run(
        [
            Step(name="unknown", kind="no-such-kind", inputs={}),
            Step(name="after", kind="inspect", inputs={"model": "unknown"}),
        ]
    )
    assert [record.state for record in run.records] == ["failed", "skipped"]
    assert "KeyError" in (run.lost("after") or "")
    shutil.rmtree(tmp_path / "cache")


def model(root: Path, name: str) -> Source:
    """Return a source whose steps differ from those of others."""
    path = root / name
    path.write_bytes(name.encode())
    return Source(path=path, sha256=name.rjust(64, "0"))


def slow_run(root: Path, told: list[str]) -> Pipeline:
    names = ("a", "b", "c")
    return Pipeline(
        {name: model(root, name) for name in names},
        cache=Cache(root / "cache"),
        toolchain=TOOLCHAIN,
        limits=StepLimits(),
        executor=ThreadPoolExecutor(2),
        jobs=2,
        progress=told.append,
    )


def inspecting(name: str, source: str, **options: Any) -> Step:
    return Step(name=name, kind="inspect", inputs={"model": source}, **options)


def test_what_does_not_need_each_other_runs_at_once_and_what_measures_runs_alone(
    tmp_path: Path,
) -> None:
    told: list[str] = []
    run = slow_run(tmp_path, told)
    steps = [inspecting("quiet", "a", quiet=True), inspecting("x", "b"), inspecting("y", "c")]
    run.run(steps)
    assert told[:2] == ["x ...", "y ..."]
    assert told.index("quiet ...") > max(
        index for index, line in enumerate(told) if line.startswith(("x failed", "y failed"))
    )
    assert [record.name for record in run.records] == ["quiet", "x", "y"]


def test_steps_that_need_much_memory_run_one_after_the_other(tmp_path: Path) -> None:
    told: list[str] = []
    run = slow_run(tmp_path, told)
    run.one_at_a_time()
    run.run([inspecting("quiet", "a", quiet=True), inspecting("x", "b"), inspecting("y", "c")])
    assert [line.split(maxsplit=2)[:2] for line in told] == [
        [name, state] for name in ("x", "y", "quiet") for state in ("...", "failed:")
    ]


def test_what_a_step_said_is_wrong_is_not_tried_again_and_a_time_limit_is(tmp_path: Path) -> None:
    first, second = pipeline(tmp_path), pipeline(tmp_path)
    for run in (first, second):
        run.run([inspecting("told", "source")])
        assert run.records[0].state == "failed"
        assert "file is empty" in run.records[0].reason
    assert first.records[0].seconds > 0.0
    assert second.records[0].seconds == 0.0
    late, again = pipeline(tmp_path, timeout_s=0.02), pipeline(tmp_path)
    for run in (late, again):
        run.run([inspecting("late", "source", options={"other": 1})])
    assert "took longer" in late.records[0].reason
    assert "file is empty" in again.records[0].reason


def test_two_steps_of_one_key_are_done_once(tmp_path: Path) -> None:
    told: list[str] = []
    run = pipeline(tmp_path)
    run._progress = told.append
    run.run([inspecting("one", "source"), inspecting("other", "source")])
    assert [line for line in told if line.endswith("...")] == ["one ..."]
    assert [record.state for record in run.records] == ["failed", "failed"]


def test_a_result_that_is_known_spares_the_step(tmp_path: Path) -> None:
    run = pipeline(tmp_path)
    step = inspecting("known", "source")
    run.seed(step, {"external": []})
    run.run([step])
    assert [record.state for record in run.records] == ["cached"]


def test_what_is_skipped_takes_along_what_needs_it(tmp_path: Path) -> None:
    run = pipeline(tmp_path)
    step = inspecting("unwanted", "source")
    run.skip(step, "it is not worth it")
    run.run([Step(name="next", kind="inspect", inputs={"model": "unwanted"})])
    assert [record.state for record in run.records] == ["skipped", "skipped"]
    assert run.lost("next") == "it is not worth it"
