"""Adapters are found by name; a runtime that is missing is said to be, with what to do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from runtime_adapters import registry
from runtime_adapters.errors import RuntimeUnavailableError
from runtime_adapters.protocol import Limits
from runtime_adapters.runtimes import BY_NAME
from tests.simulators.patience import PATIENCE_S
from wire.package.variant import VariantInfo


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a fresh process, where nothing has been imported yet."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        env={"PYTHONPATH": str(Path(registry.__file__).parents[1]), **environment},
    )


def test_every_adapter_bears_its_name_and_has_a_version() -> None:
    for name in BY_NAME:
        adapter = registry.get(name)
        assert adapter.name == name
        assert adapter.version() != ""


def test_an_unknown_runtime_is_unavailable(tmp_path: Path) -> None:
    info = VariantInfo(
        runtime="abacus", precision="p", model_file="m", inputs=(), outputs=(), size_bytes=1
    )
    with pytest.raises(
        RuntimeUnavailableError, match=r"'abacus'; the known runtimes are .*onnxruntime"
    ):
        registry.open_session(tmp_path, info, Limits())


@pytest.mark.parametrize("name", ["onnxruntime", "openvino"])
def test_a_runtime_that_is_not_installed_names_the_extra(name: str) -> None:
    ended = run(
        f"import sys; sys.modules[{name!r}] = None\n"
        "from runtime_adapters import registry\n"
        "from runtime_adapters.errors import RuntimeUnavailableError\n"
        "registry.get('null').version()\n"
        f"try: registry.get({name!r})\n"
        "except RuntimeUnavailableError as exc: print(exc)\n"
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.strip().endswith(f"install it with: pip install 'edgefleet[{name}]'")


def test_nothing_is_imported_before_it_is_asked_for() -> None:
    ended = run(
        "import sys\n"
        "from runtime_adapters import registry, golden\n"
        "registry.get('null').version()\n"
        "print({'onnxruntime', 'openvino', 'onnx'} & set(sys.modules))\n"
    )
    assert (ended.returncode, ended.stdout) == (0, "set()\n"), ended.stderr


def test_openvino_comes_without_its_statistics(tmp_path: Path) -> None:
    ended = run(
        "from runtime_adapters import registry; registry.get('openvino').version()",
        HOME=str(tmp_path),
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    assert list(tmp_path.iterdir()) == []
