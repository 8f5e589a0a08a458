"""Seals a sample to the operator's key. Loaded by workers that capture, and by no other."""

from __future__ import annotations

from agent.serve.capture import Captured
from runtime_adapters.protocol import Tensors
from runtime_adapters.sample_bytes import Sample, to_bytes
from wire.capture import SampleHead, bound
from wire.codec import to_json
from wire.trust.sealing import seal_to


def sealed(
    public_key: bytes,
    head: SampleHead,
    inputs: Tensors,
    outputs: Tensors,
    is_batch: bool,
) -> Captured:
    """Return a sample that only the operator can read.

    Args:
        public_key: His.
        head: What is said of it in the clear, which is bound to it.
        inputs: The request.
        outputs: The answer.
        is_batch: Whether the first axis of each input counts samples.

    Returns:
        The head as bytes, and what is sealed.

    Raises:
        SealedError: It is no public key.
        WireFormatError: A tensor is of a type that has no name.
    """
    said = to_json(head)
    content = to_bytes(Sample(inputs=inputs, outputs=outputs, is_batch=is_batch))
    return Captured(head=said, sealed=seal_to(public_key, content, info=bound(said)))
