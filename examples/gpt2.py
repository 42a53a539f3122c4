"""GPT-2 over a batch of prompts."""

from __future__ import annotations

import torch

from examples.building import Example, full_of, seeded, sized

SIZES = {
    "tiny": {
        "batch": 2,
        "n_positions": 16,
        "n_layer": 2,
        "n_embd": 32,
        "n_head": 4,
        "vocab_size": 128,
    },
    "small": {
        "batch": 4,
        "n_positions": 128,
        "n_layer": 4,
        "n_embd": 512,
        "n_head": 8,
        "vocab_size": 8192,
    },
    # GPT-2 XL.
    "full": {
        "batch": 16,
        "n_positions": 1024,
        "n_layer": 48,
        "n_embd": 1600,
        "n_head": 25,
        "vocab_size": 50257,
    },
}


def model(size: str = "tiny", **changes: int) -> Example:
    """Return the model and its example inputs; ``changes`` are entries of ``SIZES[size]``."""
    from transformers import GPT2Config, GPT2LMHeadModel

    given = sized(SIZES, size, changes)
    batch = given.pop("batch")
    with seeded(size):
        config = GPT2Config(**given, use_cache=False, bos_token_id=None, eos_token_id=None)
        network = GPT2LMHeadModel(config)
        tokens = torch.randint(given["vocab_size"], (batch, given["n_positions"]))
        return network.eval(), (tokens,)


full = full_of(model)
