"""Llama over a batch of prompts, with grouped-query attention."""

from __future__ import annotations

import torch

from examples.building import Example, full_of, seeded, sized

SIZES = {
    "tiny": {
        "batch": 4,
        "tokens": 16,
        "num_hidden_layers": 2,
        "hidden_size": 32,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 64,
        "vocab_size": 128,
    },
    "small": {
        "batch": 4,
        "tokens": 128,
        "num_hidden_layers": 4,
        "hidden_size": 512,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "intermediate_size": 1408,
        "vocab_size": 8192,
    },
    # Llama 2 7B: 27 GB of parameters in float32.
    "full": {
        "batch": 16,
        "tokens": 2048,
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "intermediate_size": 11008,
        "vocab_size": 32000,
    },
}


def model(size: str = "tiny", **changes: int) -> Example:
    """Return the model and its example inputs; ``changes`` are entries of ``SIZES[size]``."""
    from transformers import LlamaConfig, LlamaForCausalLM

    given = sized(SIZES, size, changes)
    shape = given.pop("batch"), given.pop("tokens")
    with seeded(size):
        network = LlamaForCausalLM(LlamaConfig(**given, use_cache=False))
        return network.eval(), (torch.randint(given["vocab_size"], shape),)


full = full_of(model)
