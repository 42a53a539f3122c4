"""The dual policy: SEL scores the ops, PLC the devices of an op."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from doppler.policy.encoder import Encoder
from doppler.policy.features import (
    DEVICE_FEATURES,
    NODE_FEATURES,
    STYLED,
    SUMMARY_SIZE,
    FeatureSet,
    node_features,
    problem_summary,
)
from doppler.policy.frozen import LOGIT_RANGE, SCORE_SCALE, STYLE_RANGE, FrozenPolicy, Sizes
from doppler.policy.hint import SUMMARY, Hint
from doppler.policy.rollout import Weights
from doppler.problem import Problem


class Inputs(NamedTuple):
    """What the encoder reads of a problem.

    Attributes
    ----------
    features : float32 tensor, shape [ops, node features]
    summary : float32 tensor, shape [SUMMARY_SIZE]
        Of the problem as a whole.
    producers, consumers : sparse CSR float32 tensor, shape [ops, ops]
        Ones in the row of each op at those that it reads, and at those that read it.
    """

    features: Tensor
    summary: Tensor
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
    style : float tensor, shape [device features]
        Mean of the logarithms of the factors on PLC's direct weights.
    """

    logits: Tensor
    node: Tensor
    code: Tensor
    style: Tensor


def policy_inputs(problem: Problem) -> Inputs:
    """Make the tensors that the encoder reads."""
    arrays, features = problem.arrays, node_features(problem)
    return Inputs(
        torch.from_numpy(features),
        torch.from_numpy(problem_summary(problem, features)),
        _neighbors(arrays.pred_ptr, arrays.pred),
        _neighbors(arrays.succ_ptr, arrays.succ),
    )


def _neighbors(ptr: npt.NDArray[np.int32], others: npt.NDArray[np.int32]) -> Tensor:
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


class DualNetwork(nn.Module):
    """What is common to the networks of SEL and PLC that the rollout kernel knows.

    SEL's logits do not change within an episode. PLC's first layer is a sum: the part of the op,
    of what is on the device, and of the device features; so each step needs only the rest.

    Attributes
    ----------
    sizes : Sizes
    features : FeatureSet
        The device features that PLC reads.
    first, first_code, second, direct : nn.Linear
        PLC's layers after the encoder's outputs.
    used : float tensor, shape [device features]
        Which of them are read.
    """

    sizes: Sizes
    features: FeatureSet
    first: nn.Linear
    first_code: nn.Linear
    second: nn.Linear
    direct: nn.Linear
    used: Tensor

    def read(self, problem: Problem) -> Any:
        """Make the tensors that the encoder reads."""
        raise NotImplementedError

    def forward(self, inputs: Any, hint: Hint | None = None) -> Heads:
        """Encode a problem, once for a batch of episodes."""
        raise NotImplementedError

    def place_parameters(self) -> list[Tensor]:
        """Return the parameters of PLC that come after the encoder's outputs."""
        layers = (self.first, self.first_code, self.second, self.direct)
        return [layer.weight for layer in layers]

    def score(
        self,
        heads: Heads,
        order: Tensor,
        features: Tensor,
        state: Tensor,
        factor: Tensor | None = None,
    ) -> Tensor:
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
        factor : float tensor, shape [..., device features], optional
            On the direct weights in each episode.

        Returns
        -------
        float tensor, shape [..., ops, devices]
        """
        seen = features * self.used
        hidden = self.node_part(heads, order) + self.first(seen) + self.first_code(state)
        counted = seen if factor is None else seen * factor[..., None, None, :]
        score: Tensor = (self.second(torch.relu(hidden)) + self.direct(counted)).squeeze(-1)
        return SCORE_SCALE * score

    @staticmethod
    def node_part(heads: Heads, order: Tensor) -> Tensor:
        """Gather the op's part of PLC's first layer, shape [..., ops, 1, hidden]."""
        return heads.node[order].unsqueeze(-2)

    def weights(self, heads: Heads) -> Weights:
        """Hand the rollout kernel what it needs for the problem that ``heads`` encode."""

        def single(tensor: Tensor) -> npt.NDArray[np.float32]:
            # A copy: an optimizer changes parameters in place.
            return np.array(tensor.detach().numpy(), np.float32, order="C")

        return Weights(
            heads.logits.detach().double().numpy(),
            single(heads.node),
            single(heads.code),
            single((self.first.weight * self.used).T),
            single(self.first_code.weight.T),
            single(SCORE_SCALE * self.second.weight[0]),
            single(SCORE_SCALE * self.direct.weight[0] * self.used),
            heads.style.detach().double().numpy(),
        )


class DualPolicy(DualNetwork):
    """SEL and PLC over one encoder. No size depends on the graph or the number of devices.

    Parameters
    ----------
    sizes : Sizes
    features : FeatureSet
        The device features that PLC reads.
    """

    styled: Tensor

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
        self.style_hidden = nn.Linear(SUMMARY_SIZE + len(SUMMARY), hidden)
        self.style_out = nn.Linear(hidden, len(DEVICE_FEATURES))
        self._start_as_list_scheduler()
        styled = torch.tensor(STYLED, dtype=torch.float32)
        self.register_buffer("styled", styled, persistent=False)
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
            self.style_out.weight.zero_()
            self.style_out.bias.zero_()
            for name in ("shared_affinity_above_least", "shared_transfers_above_least"):
                self.direct.weight[0, DEVICE_FEATURES.index(name)] = -0.5
            # A hint is followed but for what would cost several times as long as the op.
            self.direct.weight[0, DEVICE_FEATURES.index("on_hint")] = 8.0
            for name in ("on_hint_node", "consumers_hinted"):
                self.direct.weight[0, DEVICE_FEATURES.index(name)] = 1.0

    @classmethod
    def of(cls, frozen: FrozenPolicy) -> DualPolicy:
        """Make the network of a frozen policy, which does not follow what it learns."""
        policy = cls(frozen.sizes, frozen.features)
        weights = {name: torch.tensor(array) for name, array in frozen.weights.items()}
        policy.load_state_dict(weights)
        return policy.eval()

    def frozen(self) -> FrozenPolicy:
        """Return the policy as it is now, for inference."""
        weights = {name: tensor.numpy().copy() for name, tensor in self.state_dict().items()}
        return FrozenPolicy(self.sizes, self.features, weights)

    def read(self, problem: Problem) -> Inputs:
        """Make the tensors that the encoder reads."""
        return policy_inputs(problem)

    def forward(self, inputs: Inputs, hint: Hint | None = None) -> Heads:
        """Encode a problem, and choose the style of the episodes that see a hint."""
        embedded = self.encoder(inputs.features, inputs.producers, inputs.consumers)
        raw = self.select_out(torch.relu(self.select_hidden(embedded)))
        raw = (raw + self.select_direct(inputs.features)).squeeze(-1)
        logits = LOGIT_RANGE * torch.tanh(raw)
        return Heads(logits, self.node(embedded), self.code(embedded), self.style(inputs, hint))

    def style(self, inputs: Inputs, hint: Hint | None = None) -> Tensor:
        """Choose how much each device feature counts in the episodes of a problem.

        Returns
        -------
        float tensor, shape [device features]
            Mean of the logarithm of the factor on its direct weight; 0 where none is drawn.
        """
        given = np.zeros(len(SUMMARY), np.float32) if hint is None else hint.summary
        seen = torch.cat([inputs.summary, torch.from_numpy(given)])
        raw: Tensor = self.style_out(torch.relu(self.style_hidden(seen)))
        return STYLE_RANGE * torch.tanh(raw / STYLE_RANGE) * (self.styled > 0)


def list_scheduler() -> DualPolicy:
    """Make a policy that is the sibling-affinity list schedule, by b-level, and follows a hint."""
    policy = DualPolicy(Sizes(embedding=1, layers=1, hidden=1, code=1))
    with torch.no_grad():
        for layer in (policy.second, policy.select_out):
            for parameter in layer.parameters():
                parameter.zero_()
    return policy
