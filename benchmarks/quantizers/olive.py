"""Olive as a user with a network of his own uses it: a workflow, and a script that names the data.

Olive is no dependency of ours: it lives in an environment of its own, whose interpreter is named by
`--olive` or EDGEFLEET_OLIVE_PYTHON. To make one:

    python3.11 -m venv olive
    olive/bin/pip install olive-ai==0.13.0 torch==2.13.0 pydantic==2.11.10 requests \
        onnxruntime==1.31.0

Rules:
- Its usual search goes over what its static quantization declares searchable for this kind of
  output: 12 trials. Activations are unsigned, for with its default, signed ones, ONNX Runtime is
  some three times as slow on x86-64; pre-processing is on in every trial.
- It judges by accuracy on the gate images, then by latency, and may lose one percent of accuracy.
- Its log is kept; nothing it says of itself is reported, but what its model does when we run it.

Source:
    Olive 0.13.0, its documentation of workflows, data configurations and `OnnxStaticQuantization`.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.quantizers.tasks import Task
from benchmarks.quantizers.tools import QUIET, Made, run

VARIABLE: Final = "EDGEFLEET_OLIVE_PYTHON"
SEARCHED: Final = "SEARCHABLE_VALUES"
CLASSES: Final = 10


class Search(NamedTuple):
    """What Olive searches over, and how many models that is."""

    parameters: tuple[str, ...]
    """Of its static quantization; the others have Olive's defaults."""

    trials: int


USUAL: Final = Search(("per_channel", "reduce_range", "calibrate_method"), 12)
SMALL: Final = Search(("calibrate_method",), 3)
"""As many models as our build makes for ONNX Runtime."""

_SCRIPT: Final = """
import numpy as np
import torch
from olive.data.registry import Registry


class Samples(torch.utils.data.Dataset):
    def __init__(self, path):
        with np.load(path) as file:
            self.images, self.labels = file["input"], file["label"]

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return {"input": self.images[index]}, int(self.labels[index])


@Registry.register_dataset()
def samples(path, **_):
    return Samples(path)


@Registry.register_post_process()
def first_answer(output, **_):
    return torch.argmax(output, dim=-1)
"""

_DRIVER: Final = """
import json
from olive.workflows import run

output = run("workflow.json")
best = output.get_best_candidate()
with open("best.json", "w", encoding="utf-8") as file:
    json.dump({"model": best.model_path, "metrics": best.metrics_value}, file)
"""


def interpreter(asked: str) -> Path | str:
    """Find Olive's interpreter.

    Args:
        asked: By the command line; empty for the environment variable.

    Returns:
        Its path, or why there is none.
    """
    named = asked or os.environ.get(VARIABLE, "")
    if not named:
        return f"name its interpreter with --olive or {VARIABLE}"
    try:
        # Also puts its libraries, which are large, into the file cache: their first reading from
        # the disk is none of its work.
        done = subprocess.run(
            [named, "-c", "import olive.workflows, torch, onnxruntime; print(olive.__version__)"],
            env={**os.environ, **QUIET},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        return f"{named}: {exc}"
    if done.returncode != 0:
        return f"{named}: {(done.stderr.strip().splitlines() or ['failed'])[-1]}"
    return Path(named)


def search(python: Path, task: Task, folder: Path, how: Search = USUAL) -> Made:
    """Let Olive search.

    Args:
        python: Its interpreter.
        task: The model and its images.
        folder: To work in; made.
        how: Over what.

    Returns:
        Its best model by its own judgement.

    Raises:
        RuntimeError: It failed, or made another number of models than it was asked to.
    """
    folder.mkdir(parents=True)
    (folder / "samples.py").write_text(_SCRIPT, encoding="utf-8")
    (folder / "drive.py").write_text(_DRIVER, encoding="utf-8")
    workflow = json.dumps(_workflow(task, folder, how), indent=2)
    (folder / "workflow.json").write_text(workflow, encoding="utf-8")
    seconds = run([str(python), "drive.py"], folder)
    trials = _trials(folder / "output" / "footprint.json")
    if trials != how.trials:
        raise RuntimeError(f"Olive made {trials} models, it was asked for {how.trials}")
    best = json.loads((folder / "best.json").read_text(encoding="utf-8"))
    return Made("Olive", "onnxruntime", Path(best["model"]), {}, seconds, trials)


def _trials(footprint: Path) -> int:
    nodes = json.loads(footprint.read_text(encoding="utf-8")).values()
    return sum(1 for node in nodes if node.get("from_pass") and node.get("metrics"))


def _workflow(task: Task, folder: Path, how: Search) -> dict[str, Any]:
    settings = {"onnx": {"session_options": {"intra_op_num_threads": 1}}}
    accuracy = {
        "name": "accuracy_score",
        "priority": 1,
        "metric_config": {"task": "multiclass", "num_classes": CLASSES},
        "goal": {"type": "percent-max-degradation", "value": 1.0},
    }
    latency = {
        "name": "p50",
        "priority": 2,
        "metric_config": {"warmup_num": 20, "repeat_test_num": 200},
    }
    return {
        "input_model": {"type": "ONNXModel", "config": {"model_path": str(task.model)}},
        "systems": {
            "local": {
                "type": "LocalSystem",
                "accelerators": [
                    {"device": "cpu", "execution_providers": ["CPUExecutionProvider"]}
                ],
            }
        },
        "data_configs": [
            _data("calibration", task.float_calibration, folder),
            _data("gate", task.float_gate, folder),
        ],
        "evaluators": {
            "judge": {
                "metrics": [
                    {
                        "name": name,
                        "type": name,
                        "data_config": "gate",
                        "sub_types": [metric],
                        "user_config": {"inference_settings": settings},
                    }
                    for name, metric in (("accuracy", accuracy), ("latency", latency))
                ]
            }
        },
        "passes": {
            "quantize": {
                "type": "OnnxStaticQuantization",
                "data_config": "calibration",
                "precision": "int8",
                "activation_type": "uint8",
                "quant_format": "QDQ",
                "quant_preprocess": True,
                **dict.fromkeys(how.parameters, SEARCHED),
            }
        },
        "search_strategy": {"execution_order": "joint", "sampler": "sequential"},
        "evaluator": "judge",
        "host": "local",
        "target": "local",
        "cache_dir": str(folder / "cache"),
        "output_dir": str(folder / "output"),
        "log_severity_level": 2,
    }


def _data(name: str, images: Path, folder: Path) -> dict[str, Any]:
    return {
        "name": name,
        "user_script": str(folder / "samples.py"),
        "load_dataset_config": {"type": "samples", "params": {"path": str(images)}},
        "post_process_data_config": {"type": "first_answer"},
        "dataloader_config": {"params": {"batch_size": 1}},
    }
