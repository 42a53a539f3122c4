"""BERT with a classifier, called by keyword, with a mask over the padding."""

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
        "intermediate_size": 64,
        "vocab_size": 128,
    },
    "small": {
        "batch": 4,
        "tokens": 128,
        "num_hidden_layers": 4,
        "hidden_size": 512,
        "num_attention_heads": 8,
        "intermediate_size": 2048,
        "vocab_size": 8192,
    },
    # BERT large.
    "full": {
        "batch": 32,
        "tokens": 512,
        "num_hidden_layers": 24,
        "hidden_size": 1024,
        "num_attention_heads": 16,
        "intermediate_size": 4096,
        "vocab_size": 30522,
    },
}


def model(size: str = "tiny", **changes: int) -> Example:
    """Return the model and its example inputs; ``changes`` are entries of ``SIZES[size]``."""
    from transformers import BertConfig, BertForSequenceClassification

    given = sized(SIZES, size, changes)
    shape = given.pop("batch"), given.pop("tokens")
    with seeded(size):
        network = BertForSequenceClassification(BertConfig(**given))
        mask = torch.ones(shape, dtype=torch.int64)
        mask[-1, shape[1] // 2 :] = 0
        tokens = torch.randint(given["vocab_size"], shape)
        return network.eval(), {"input_ids": tokens, "attention_mask": mask}


full = full_of(model)
