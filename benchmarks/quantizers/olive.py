"""Olive as a user with a network of his own uses it: a workflow, and a script that names the data.

Olive is no dependency of ours: it lives in an environment of its own, whose interpreter is named by
`--olive` or EDGEFLEET_OLIVE_PYTHON. To make one:

    python3.11 -m venv olive
    olive/bin/pip install olive-ai==0.13.0 torch==2.13.0 pydantic==2.11.10 requests \
        onnxruntime==1.31.0

Rules:
- Its usual search goes over what its static quantization declares searchable for this kind of
  output: 12 trials, of which those that fail give no model. Activations are unsigned, for with its
  default, signed ones, ONNX Runtime is some three times as slow on x86-64; pre-processing is on in
  every trial.
- It judges by quality on the gate samples, then by latency, and may lose one percent of quality.
  Its metrics for functions of one's own cannot be used: a run with one ends when Olive 0.13 writes
  its settings down. So it judges by those of its own that come closest: the share of right classes,
  of lines without a mistake, and the F1 score of pixels, which is Dice's coefficient.
- Its log is kept; nothing it says of itself is reported, but what its model does when we run it.

Source:
    Olive 0.13.0, its documentation of workflows, data configurations and `OnnxStaticQuantization`.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any, Final

from benchmarks.quantizers.task import LABEL, Task
from benchmarks.quantizers.tools import QUIET, Made, run

VARIABLE: Final = "EDGEFLEET_OLIVE_PYTHON"
SEARCHED: Final = ("per_channel", "reduce_range", "calibrate_method")
"""Of its static quantization; the others have Olive's defaults."""

_SCRIPT: Final = """
import numpy as np
import torch
from benchmarks.quantizers.qualities import FOUND, tokens_read
from olive.data.registry import Registry
from zlib import crc32


def numbered(tokens):
    return crc32(str(tokens).encode()) % 2**31


TRUTHS = {
    "right_class": int,
    "right_characters": lambda label: numbered([int(token) for token in label if token >= 0]),
    "found_pixels": lambda label: label.astype(np.int64),
}


class Samples(torch.utils.data.Dataset):
    def __init__(self, path, name, label, quality):
        with np.load(path) as file:
            self.samples, self.labels, self.name = file[name], file[label], name
        self.truth = TRUTHS[quality]

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return {self.name: self.samples[index]}, self.truth(self.labels[index])


@Registry.register_dataset()
def samples(path, name, label, quality, **_):
    return Samples(path, name, label, quality)


@Registry.register_post_process()
def right_class(output, **_):
    return torch.argmax(output, dim=-1)


@Registry.register_post_process()
def right_characters(output, **_):
    return torch.tensor([numbered(tokens_read(output.numpy()))])


@Registry.register_post_process()
def found_pixels(output, **_):
    return (output[:, 0] >= FOUND).long()
"""

_METRICS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "right_class": ("accuracy_score", {"task": "multiclass", "num_classes": 1000}),
    "right_characters": ("accuracy_score", {"task": "multiclass", "num_classes": 2**31}),
    "found_pixels": ("f1_score", {"task": "binary"}),
}

_DRIVER: Final = """
import json
from olive.workflows import run

output = run("workflow.json")
best = output.get_best_candidate()
if best is None:
    raise SystemExit("Olive chose no model, for none met its goals")
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


def search(python: Path, task: Task, folder: Path) -> Made:
    """Let Olive search.

    Args:
        python: Its interpreter.
        task: The model and its images.
        folder: To work in; made.

    Returns:
        Its best model by its own judgement.

    Raises:
        RuntimeError: It failed, or made another number of models than it was asked to.
    """
    folder.mkdir(parents=True)
    (folder / "samples.py").write_text(_SCRIPT, encoding="utf-8")
    (folder / "drive.py").write_text(_DRIVER, encoding="utf-8")
    workflow = json.dumps(_workflow(task, folder), indent=2)
    (folder / "workflow.json").write_text(workflow, encoding="utf-8")
    seconds = run([str(python), "drive.py"], folder)
    trials = _trials(folder / "output" / "footprint.json")
    if not trials:
        raise RuntimeError("Olive made no model")
    best = json.loads((folder / "best.json").read_text(encoding="utf-8"))
    return Made("Olive", "onnxruntime", Path(best["model"]), {}, seconds, trials)


def _trials(footprint: Path) -> int:
    nodes = json.loads(footprint.read_text(encoding="utf-8")).values()
    return sum(1 for node in nodes if node.get("from_pass") and node.get("metrics"))


def _workflow(task: Task, folder: Path) -> dict[str, Any]:
    settings = {"onnx": {"session_options": {"intra_op_num_threads": 1}}}
    name, config = _METRICS[task.quality]
    quality = {
        "name": name,
        "priority": 1,
        "metric_config": config,
        "goal": {"type": "percent-max-degradation", "value": 1.0},
    }
    latency = {
        "name": "p50",
        "priority": 2,
        "metric_config": {"warmup_num": 5, "repeat_test_num": 50},
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
            _data("calibration", task, task.float_calibration, folder),
            _data("gate", task, task.float_gate, folder),
        ],
        "evaluators": {
            "judge": {
                "metrics": [
                    {
                        "name": kind,
                        "type": kind,
                        "data_config": "gate",
                        "sub_types": [metric],
                        "user_config": {"inference_settings": settings},
                    }
                    for kind, metric in (("accuracy", quality), ("latency", latency))
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
                **dict.fromkeys(SEARCHED, "SEARCHABLE_VALUES"),
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


def _data(name: str, task: Task, file: Path, folder: Path) -> dict[str, Any]:
    given = {"path": str(file), "name": task.input, "label": LABEL, "quality": task.quality}
    return {
        "name": name,
        "user_script": str(folder / "samples.py"),
        "load_dataset_config": {"type": "samples", "params": given},
        "post_process_data_config": {"type": task.quality},
        "dataloader_config": {"params": {"batch_size": 1}},
    }
