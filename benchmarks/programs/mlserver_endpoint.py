"""Serves an ONNX model with MLServer and ONNX Runtime: `mlserver_endpoint.py MODEL PORT`.

MLServer's REST reads JSON; Base64 in it is quicker than numbers.
"""

import asyncio
import base64
import sys

import numpy as np
import onnxruntime
from mlserver import MLModel, MLServer, ModelSettings, Settings
from mlserver.settings import ModelParameters
from mlserver.types import InferenceRequest, InferenceResponse, ResponseOutput


class Model(MLModel):  # type: ignore[misc]  # not installed where types are checked
    """The model, as MLServer wants it."""

    async def load(self) -> bool:
        """Load the model."""
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(
            self.settings.parameters.uri, options, providers=["CPUExecutionProvider"]
        )
        (self._input,) = self._session.get_inputs()
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """Run the model."""
        (content,) = payload.inputs[0].data
        array = np.frombuffer(base64.b64decode(content), np.float32)
        feeds = {self._input.name: array.reshape([1, *self._input.shape[1:]])}
        (output,) = self._session.run(None, feeds)
        answer = ResponseOutput(
            name="y", shape=[1], datatype="BYTES", data=[base64.b64encode(output.tobytes())]
        )
        return InferenceResponse(model_name=self.name, outputs=[answer])


async def main(model: str, port: int) -> None:
    """Serve until the process is ended."""
    settings = Settings(
        host="127.0.0.1", http_port=port, grpc_port=0, metrics_endpoint=None, debug=False
    )
    parameters = ModelParameters(uri=model)
    bench = ModelSettings(name="bench", implementation=Model, parameters=parameters)
    await MLServer(settings).start([bench])


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
