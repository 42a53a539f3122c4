"""Mixtral as transformers has it: one grouped matrix product for all experts of a layer."""

from __future__ import annotations

import torch

from examples.building import Example, full_of, seeded, sized

SIZES = {
    "tiny": {
        "batch": 2,
        "tokens": 16,
        "num_hidden_layers": 2,
        "hidden_size": 32,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 64,
        "num_local_experts": 4,
        "vocab_size": 128,
    },
    "small": {
        "batch": 4,
        "tokens": 128,
        "num_hidden_layers": 2,
        "hidden_size": 512,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "intermediate_size": 1408,
        "num_local_experts": 8,
        "vocab_size": 8192,
    },
    # The widths of Mixtral 8x7B halved, and half of its layers: 23 GB of parameters in float32.
    "full": {
        "batch": 16,
        "tokens": 2048,
        "num_hidden_layers": 16,
        "hidden_size": 2048,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "intermediate_size": 7168,
        "num_local_experts": 8,
        "vocab_size": 32000,
    },
}


def model(size: str = "tiny", **changes: int) -> Example:
    """Return the model and its example inputs; ``changes`` are entries of ``SIZES[size]``."""
    from transformers import MixtralConfig, MixtralForCausalLM

    given = sized(SIZES, size, changes)
    shape = given.pop("batch"), given.pop("tokens")
    with seeded(size):
        config = MixtralConfig(**given, use_cache=False, experts_implementation="grouped_mm")
        network = MixtralForCausalLM(config)
        return network.eval(), (torch.randint(given["vocab_size"], shape),)


full = full_of(model)
