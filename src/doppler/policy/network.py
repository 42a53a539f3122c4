"""The dual policy: SEL scores the ops, PLC the devices of an op."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from doppler.policy.encoder import Encoder
from doppler.policy.features import (
    DEVICE_FEATURES,
    NODE_FEATURES,
    FeatureSet,
    node_features,
)
from doppler.policy.rollout import Weights
from doppler.problem import Problem

# Float64 normalisers of a whole episode stay exact while no logit leaves this range.
LOGIT_RANGE = 10.0
# Scores are that many times what the layers give, so that a step of the optimiser, which moves each
# weight about as far, moves them about as far as they have to go.
SCORE_SCALE = 12.0


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of the networks.

    Attributes
    ----------
    embedding : int
        Width of the op embeddings.
    layers : int
        Rounds of message passing.
    hidden : int
        Width of PLC's hidden layer.
    code : int
        Width of what an op adds to the state of its device.
    """

    embedding: int = 64
    layers: int = 4
    hidden: int = 32
    code: int = 8


class Inputs(NamedTuple):
    """What the encoder reads of a problem.

    Attributes
    ----------
    features : float32 tensor, shape [ops, node features]
    producers, consumers : sparse CSR float32 tensor, shape [ops, ops]
        Ones in the row of each op at those that it reads, and at those that read it.
    """

    features: Tensor
    producers: Tensor
    consumers: Tensor


class Heads(NamedTuple):
    """What the encoder yields for one problem, once per batch of episodes.

    Attributes
    ----------
    logits : float tensor, shape [ops]
        SEL's, within +-10.
    node : float tensor, shape [ops, hidden]
        PLC's first layer, the part of the op.
    code : float tensor, shape [ops, code]
        What an op adds to the state of its device.
    """

    logits: Tensor
    node: Tensor
    code: Tensor


def policy_inputs(problem: Problem) -> Inputs:
    """Make the tensors that the encoder reads."""
    arrays = problem.arrays
    return Inputs(
        torch.from_numpy(node_features(problem)),
        _neighbours(arrays.pred_ptr, arrays.pred),
        _neighbours(arrays.succ_ptr, arrays.succ),
    )


def _neighbours(ptr: npt.NDArray[np.int32], others: npt.NDArray[np.int32]) -> Tensor:
    n_ops = len(ptr) - 1
    with warnings.catch_warnings():
        # Once in a process torch tells everybody that its CSR tensors are in beta.
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta", UserWarning)
        return torch.sparse_csr_tensor(
            torch.from_numpy(ptr.astype(np.int64)),
            torch.from_numpy(others.astype(np.int64)),
            torch.ones(len(others)),
            (n_ops, n_ops),
            check_invariants=False,
        )


class DualPolicy(nn.Module):
    """SEL and PLC over one encoder. No size depends on the graph or the number of devices.

    Parameters
    ----------
    sizes : Sizes
    features : FeatureSet
        The device features that PLC reads.
    """

    used: Tensor

    def __init__(self, sizes: Sizes | None = None, features: FeatureSet | None = None) -> None:
        super().__init__()
        self.sizes = sizes or Sizes()
        self.features = features or FeatureSet.named("full")
        width, hidden = self.sizes.embedding, self.sizes.hidden
        self.encoder = Encoder(len(NODE_FEATURES), width, self.sizes.layers)
        self.select_hidden = nn.Linear(width, width)
        self.select_out = nn.Linear(width, 1)
        self.node = nn.Linear(width, hidden)
        self.code = nn.Linear(width, self.sizes.code)
        self.first = nn.Linear(len(DEVICE_FEATURES), hidden, bias=False)
        self.first_code = nn.Linear(self.sizes.code, hidden, bias=False)
        self.second = nn.Linear(hidden, 1, bias=False)
        self.direct = nn.Linear(len(DEVICE_FEATURES), 1, bias=False)
        self.select_direct = nn.Linear(len(NODE_FEATURES), 1)
        self._start_as_list_scheduler()
        used = torch.tensor(self.features.used, dtype=torch.float32)
        self.register_buffer("used", used, persistent=False)

    def _start_as_list_scheduler(self) -> None:
        """Begin near the sibling-affinity list schedule, and let learning find what is better.

        SEL prefers high b-levels, PLC early ends, little forced communication and few transfers,
        and the hint where there is one; the hidden layers start small beside that.
        """
        with torch.no_grad():
            self.select_out.weight.mul_(0.1)
            self.second.weight.mul_(0.1)
            self.select_direct.weight.zero_()
            self.select_direct.bias.fill_(-1.0)
            self.select_direct.weight[0, NODE_FEATURES.index("b_level")] = 2.0
            self.direct.weight.zero_()
            for name in ("end_above_least", "affinity_above_least", "transfers_above_least"):
                self.direct.weight[0, DEVICE_FEATURES.index(name)] = -4.0
            # A hint is followed but for what would cost several times as long as the op.
            self.direct.weight[0, DEVICE_FEATURES.index("on_hint")] = 8.0
            self.direct.weight[0, DEVICE_FEATURES.index("on_hint_node")] = 1.0

    def place_parameters(self) -> list[Tensor]:
        """Return the parameters of PLC that come after the encoder's outputs."""
        layers = (self.first, self.first_code, self.second, self.direct)
        return [layer.weight for layer in layers]

    def forward(self, inputs: Inputs) -> Heads:
        """Encode a problem."""
        embedded = self.encoder(*inputs)
        raw = self.select_out(torch.relu(self.select_hidden(embedded)))
        raw = (raw + self.select_direct(inputs.features)).squeeze(-1)
        logits = LOGIT_RANGE * torch.tanh(raw)
        return Heads(logits, self.node(embedded), self.code(embedded))

    def score(self, heads: Heads, order: Tensor, features: Tensor, state: Tensor) -> Tensor:
        """Score devices for a batch of steps.

        Parameters
        ----------
        heads : Heads
        order : int64 tensor, shape [..., ops]
            The op of each step.
        features : float tensor, shape [..., ops, devices, device features]
        state : float tensor, shape [..., ops, devices, code]
            Sum of the codes of the ops that are on each device before the step, divided by one
            more than their number.

        Returns
        -------
        float tensor, shape [..., ops, devices]
        """
        seen = features * self.used
        hidden = self.node_part(heads, order) + self.first(seen) + self.first_code(state)
        score: Tensor = (self.second(torch.relu(hidden)) + self.direct(seen)).squeeze(-1)
        return SCORE_SCALE * score

    @staticmethod
    def node_part(heads: Heads, order: Tensor) -> Tensor:
        """Gather the op's part of PLC's first layer, shape [..., ops, 1, hidden]."""
        return heads.node[order].unsqueeze(-2)

    def weights(self, heads: Heads) -> Weights:
        """Hand the rollout kernel what it needs for the problem that ``heads`` encode."""

        def single(tensor: Tensor) -> npt.NDArray[np.float32]:
            # A copy: an optimiser changes parameters in place.
            return np.array(tensor.detach().numpy(), np.float32, order="C")

        return Weights(
            heads.logits.detach().double().numpy(),
            single(heads.node),
            single(heads.code),
            single((self.first.weight * self.used).T),
            single(self.first_code.weight.T),
            single(SCORE_SCALE * self.second.weight[0]),
            single(SCORE_SCALE * self.direct.weight[0] * self.used),
        )
