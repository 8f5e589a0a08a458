"""Our packager's best int8 variant beside ONNX Runtime's, NNCF's and Olive's quantizers.

On eight models: two networks for images, Magika's classifier of file types, the three networks of
PP-OCR, and two scikit-learn pipelines. The ResNet-20 needs the folder that EDGEFLEET_MODELS names;
Magika's and PP-OCR's models are fetched as wheels, once. Olive needs an environment of its own (see
`benchmarks/quantizers/olive.py`), whose interpreter `--olive` or EDGEFLEET_OLIVE_PYTHON names. What
is not there is not run, and the row says so. `--task NAME` (repeatable) chooses models; `--quick`
takes the smallest.

This is the benchmark of the packager. A script of that name would hide the package.
"""

from __future__ import annotations

import sys

from benchmarks.quantizers.command import command

if __name__ == "__main__":
    sys.exit(command(sys.argv[1:]))
