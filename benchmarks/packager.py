"""Our packager's best int8 variant beside ONNX Runtime's, NNCF's and Olive's quantizers.

The ResNet-20 needs the folder of models that EDGEFLEET_MODELS names; Olive needs an environment of
its own (see `benchmarks/quantizers/olive.py`), whose interpreter `--olive` or
EDGEFLEET_OLIVE_PYTHON names. What is not there is not run, and the row says so.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    # Python looks into this folder first, and would take this file for the package `packager`.
    here = Path(__file__).resolve().parent
    sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != here]

    from benchmarks.quantizers.command import command

    sys.exit(command(sys.argv[1:]))
