"""Our packager's best int8 variant beside ONNX Runtime's, NNCF's and Olive's quantizers.

The ResNet-20 needs the folder of models that EDGEFLEET_MODELS names; Olive needs an environment of
its own (see `benchmarks/quantizers/olive.py`), whose interpreter `--olive` or
EDGEFLEET_OLIVE_PYTHON names. What is not there is not run, and the row says so.
"""

from __future__ import annotations

import sys

from benchmarks.quantizers.command import command

if __name__ == "__main__":
    sys.exit(command(sys.argv[1:]))
