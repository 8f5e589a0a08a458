"""Serves an ONNX model with LitServe and ONNX Runtime: `litserve_endpoint.py MODEL PORT`.

LitServe reads JSON; Base64 in it is quicker than numbers.
"""

import base64
import sys
from typing import Any, TypeAlias

import litserve
import numpy as np
import onnxruntime

Array: TypeAlias = np.ndarray[Any, np.dtype[np.float32]]


class Api(litserve.LitAPI):  # type: ignore[misc]  # not installed where types are checked
    """The model, as LitServe wants it."""

    def setup(self, _device: str) -> None:
        """Load the model."""
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(
            sys.argv[1], options, providers=["CPUExecutionProvider"]
        )
        (self._input,) = self._session.get_inputs()

    def decode_request(self, request: dict[str, str]) -> Array:
        """Read a tensor."""
        array = np.frombuffer(base64.b64decode(request["data"]), np.float32)
        return array.reshape([1, *self._input.shape[1:]])

    def predict(self, x: Array) -> Array:
        """Run the model."""
        output: Array = self._session.run(None, {self._input.name: x})[0]
        return output

    def encode_response(self, output: Array) -> dict[str, str]:
        """Write a tensor."""
        return {"data": base64.b64encode(output.tobytes()).decode()}


if __name__ == "__main__":
    server = litserve.LitServer(Api(), accelerator="cpu", timeout=60)
    server.run(host="127.0.0.1", port=int(sys.argv[2]), log_level="critical")
