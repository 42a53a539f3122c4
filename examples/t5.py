"""T5: an encoder, and a decoder that attends to it."""

from __future__ import annotations

import torch

from examples.building import Example, full_of, seeded, sized

SIZES = {
    "tiny": {
        "batch": 2,
        "tokens": 16,
        "targets": 8,
        "num_layers": 2,
        "d_model": 32,
        "num_heads": 4,
        "d_kv": 8,
        "d_ff": 64,
        "vocab_size": 128,
    },
    "small": {
        "batch": 4,
        "tokens": 128,
        "targets": 128,
        "num_layers": 2,
        "d_model": 512,
        "num_heads": 8,
        "d_kv": 64,
        "d_ff": 2048,
        "vocab_size": 8192,
    },
    # T5 large.
    "full": {
        "batch": 16,
        "tokens": 512,
        "targets": 512,
        "num_layers": 24,
        "d_model": 1024,
        "num_heads": 16,
        "d_kv": 64,
        "d_ff": 4096,
        "vocab_size": 32128,
    },
}


def model(size: str = "tiny", **changes: int) -> Example:
    """Return the model and its example inputs; ``changes`` are entries of ``SIZES[size]``."""
    from transformers import T5Config, T5ForConditionalGeneration

    given = sized(SIZES, size, changes)
    batch, tokens, targets = given.pop("batch"), given.pop("tokens"), given.pop("targets")
    with seeded(size):
        network = T5ForConditionalGeneration(T5Config(**given, use_cache=False))
        inputs = {
            "input_ids": torch.randint(given["vocab_size"], (batch, tokens)),
            "decoder_input_ids": torch.randint(given["vocab_size"], (batch, targets)),
        }
        return network.eval(), inputs


full = full_of(model)
