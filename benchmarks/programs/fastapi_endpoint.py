"""Serves an ONNX model with FastAPI, uvicorn and ONNX Runtime: `fastapi_endpoint.py MODEL`.

It is what a user would write instead of the agent. Prints its port, and ends when told to.
"""

import socket
import sys

import numpy as np
import onnxruntime
import uvicorn
from fastapi import FastAPI, Request, Response


def application(model: str) -> FastAPI:
    """Return the application.

    Args:
        model: Path of the ONNX model, which has one input of 32-bit floats and one output.

    Returns:
        The application.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    (model_input,) = session.get_inputs()
    shape = [1, *model_input.shape[1:]]
    app = FastAPI()

    @app.post("/infer")
    async def infer(request: Request) -> Response:
        array = np.frombuffer(await request.body(), np.float32).reshape(shape)
        (output,) = session.run(None, {model_input.name: array})
        return Response(output.tobytes(), media_type="application/octet-stream")

    return app


def main(model: str) -> None:
    """Serve the model at a free port."""
    app = application(model)
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.bind(("127.0.0.1", 0))
    print(sock.getsockname()[1], flush=True)
    # Ours keeps a silent connection for 75 s, uvicorn by default for 5, less than another's round.
    config = uvicorn.Config(app, log_level="critical", access_log=False, timeout_keep_alive=75)
    uvicorn.Server(config).run([sock])


if __name__ == "__main__":
    main(sys.argv[1])
