"""Serves an ONNX model with KServe's server and ONNX Runtime: `kserve_endpoint.py MODEL PORT`.

It speaks the same protocol as we do, with raw tensors.
"""

import sys

import kserve
import numpy as np
import onnxruntime


class Model(kserve.Model):  # type: ignore[misc]  # not installed where types are checked
    """The model, as KServe wants it."""

    def __init__(self) -> None:
        super().__init__("bench")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(
            sys.argv[1], options, providers=["CPUExecutionProvider"]
        )
        (self._output,) = self._session.get_outputs()
        self.ready = True

    def predict(
        self, payload: kserve.InferRequest, _headers: object = None, **_: object
    ) -> kserve.InferResponse:
        """Run the model."""
        (tensor,) = payload.inputs
        (output,) = self._session.run(None, {tensor.name: tensor.as_numpy()})
        answer = kserve.InferOutput(self._output.name, list(output.shape), "FP32")
        answer.set_data_from_numpy(np.ascontiguousarray(output), binary_data=True)
        return kserve.InferResponse(
            response_id=payload.id or "", model_name="bench", infer_outputs=[answer]
        )


if __name__ == "__main__":
    kserve.ModelServer(
        http_port=int(sys.argv[2]), enable_grpc=False, enable_latency_logging=False
    ).start([Model()])
