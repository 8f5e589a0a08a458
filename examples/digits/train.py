"""Trains the demo's digit classifier and writes it as ``digits.onnx`` beside this file.

PyTorch is no dependency of the project: the trained model is kept in the repository, and this
module is here so that anyone can make it again. From the repository's root, in an environment of
its own::

    pip install torch==2.13.0 onnx==1.23.2 scikit-learn
    python -m examples.digits.train

Rules this module keeps:

* Only the training split is learned from, and the number of epochs is fixed. The evaluation split
  is scored once, at the end, and chooses nothing.
* Every random draw is seeded. Results still differ in the last bits between processors, so a model
  trained elsewhere is as good as the one in the repository but not byte-identical to it.
* The file is self-contained: weights inline, batch normalization folded into the convolutions,
  batch axis dynamic, and no text in it that describes the machine that made it.
"""

from __future__ import annotations

import argparse
import io
from pathlib import Path
from typing import Any

import onnx
import torch
from torch import nn

from examples.digits.data import INPUT_KEY, Split, load_splits

SEED = 7  # fixes the weights' start, the order of the images and their shifts
CHANNELS = 64  # a multiple of every SIMD width; on narrower layers int8 gains less over fp32
BLOCKS = 3  # with 64 channels: 14 M multiply-adds and 0.9 MB, heavy enough to time precisely
EPOCHS = 40  # the training loss is flat by then
BATCH_SIZE = 64  # 17 steps an epoch
PEAK_LEARNING_RATE = 4e-3  # of a one-cycle schedule with AdamW
WEIGHT_DECAY = 0.05  # some, for a thousand images against 222,000 weights
LABEL_SMOOTHING = 0.05  # keeps logits small, which leaves a quantizer narrower ranges to cover
SHIFT = 1  # pixels an image may move each way; two would push strokes out of an 8x8 frame
THREADS = 2  # fixed, because the order of floating-point sums depends on it
OPSET = 17  # old enough for every runtime the project supports
IR_VERSION = 8  # the one that goes with opset 17
OUTPUT_NAME = "logits"
MODEL_PATH = Path(__file__).with_name("digits.onnx")


class Residual(nn.Module):  # type: ignore[misc]  # torch is not installed where types are checked
    """Two 3x3 convolutions with a connection around them."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )
        self.activation = nn.ReLU()

    def forward(self, features: Any) -> Any:  # noqa: ANN401  # a tensor; torch is untyped here
        """Run the block.

        Args:
            features: A tensor of shape (N, channels, height, width).

        Returns:
            A tensor of the same shape.
        """
        return self.activation(features + self.body(features))


def build_network() -> Any:  # noqa: ANN401  # a torch module; torch is untyped here
    """Build the untrained network: a stem, residual blocks at full size, pooling, one layer.

    Returns:
        A module that maps (N, 1, 8, 8) images to (N, 10) logits.
    """
    return nn.Sequential(
        nn.Conv2d(1, CHANNELS, 3, padding=1, bias=False),
        nn.BatchNorm2d(CHANNELS),
        nn.ReLU(),
        *(Residual(CHANNELS) for _ in range(BLOCKS)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(CHANNELS, 10),
    )


def train(network: Any, split: Split) -> None:  # noqa: ANN401  # a torch module
    """Train the network in place, and leave it in evaluation mode.

    Args:
        network: What :func:`build_network` made.
        split: The images to learn from.
    """
    images = torch.from_numpy(split.images)
    labels = torch.from_numpy(split.labels)
    steps = -(-len(labels) // BATCH_SIZE)
    optimizer = torch.optim.AdamW(network.parameters(), weight_decay=WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=PEAK_LEARNING_RATE, epochs=EPOCHS, steps_per_epoch=steps
    )
    loss_of = nn.CrossEntropyLoss(label_smoothing=LABEL_SMOOTHING)
    network.train()
    for epoch in range(EPOCHS):
        total = 0.0
        for chosen in torch.randperm(len(labels)).split(BATCH_SIZE):
            loss = loss_of(network(_shifted(images[chosen])), labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item() * len(chosen)
        print(f"epoch {epoch + 1}/{EPOCHS}: training loss {total / len(labels):.4f}", flush=True)
    network.eval()


def accuracy(network: Any, split: Split) -> float:  # noqa: ANN401  # a torch module
    """Measure how many images the network gets right.

    Args:
        network: A network in evaluation mode.
        split: The images to score on.

    Returns:
        The share of right answers, 0 to 1.
    """
    with torch.no_grad():
        guesses = network(torch.from_numpy(split.images)).argmax(dim=1)
    return float((guesses == torch.from_numpy(split.labels)).double().mean().item())


def export(network: Any, path: Path) -> None:  # noqa: ANN401  # a torch module
    """Write the network as an ONNX model.

    Args:
        network: A network in evaluation mode.
        path: The file to write.
    """
    buffer = io.BytesIO()
    torch.onnx.export(
        network,
        (torch.zeros(1, 1, 8, 8),),
        buffer,
        input_names=[INPUT_KEY],
        output_names=[OUTPUT_NAME],
        dynamic_axes={INPUT_KEY: {0: "batch"}, OUTPUT_NAME: {0: "batch"}},
        opset_version=OPSET,
        dynamo=False,  # this exporter folds batch normalization and records no stack traces
    )
    model: Any = onnx.load_from_string(buffer.getvalue())
    model.ir_version = IR_VERSION
    model.graph.name = "digits"
    for part in (model, model.graph, *model.graph.node, *model.graph.initializer):
        part.ClearField("doc_string")
        part.ClearField("metadata_props")
    onnx.checker.check_model(model, full_check=True)
    path.write_bytes(model.SerializeToString(deterministic=True))


def main() -> None:
    """Train, score on the evaluation split, and write the model."""
    parser = argparse.ArgumentParser(description="Train the digit classifier.")
    parser.add_argument("--out", type=Path, default=MODEL_PATH, help="the ONNX file to write")
    arguments = parser.parse_args()

    torch.manual_seed(SEED)
    torch.set_num_threads(THREADS)
    torch.use_deterministic_algorithms(mode=True)
    splits = load_splits()
    network = build_network()
    train(network, splits.train)
    export(network, arguments.out)
    print(f"accuracy on the evaluation split: {accuracy(network, splits.evaluation):.4f}")


def _shifted(images: Any) -> Any:  # noqa: ANN401  # tensors; torch is untyped here
    """Move each image by up to ``SHIFT`` pixels along both axes, filling with background.

    Args:
        images: A tensor of shape (N, 1, height, width).

    Returns:
        A tensor of the same shape.
    """
    count, _, height, width = images.shape
    padded = nn.functional.pad(images[:, 0], (SHIFT, SHIFT, SHIFT, SHIFT))
    top, left = torch.randint(0, 2 * SHIFT + 1, (2, count, 1, 1))
    rows = top + torch.arange(height)[:, None]
    columns = left + torch.arange(width)
    return padded[torch.arange(count)[:, None, None], rows, columns][:, None]


if __name__ == "__main__":
    main()
