"""Log-probabilities of whole batches of episodes, differentiable."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from doppler.kernels import kernel
from doppler.policy.features import STYLED
from doppler.policy.network import DualNetwork, Heads
from doppler.policy.rollout import Record
from doppler.problem import Arrays, Problem

IntArray = npt.NDArray[np.int32]


class LogProbabilities(NamedTuple):
    """Log-probabilities by step.

    Attributes
    ----------
    select : float64 tensor, shape [episodes, ops]
        Of SEL's choices.
    place : float tensor, shape [episodes, ops, devices]
        Of all that PLC could choose; -inf where it could not.
    style : float tensor, shape [episodes]
        Density of the episode's style, but for a constant.
    """

    select: Tensor
    place: Tensor
    style: Tensor


@kernel
def entry_steps(pred_ptr, pred, order, entered):  # type: ignore[no-untyped-def]
    """Find when each chosen op became a candidate: the step after its last producer's. O(V + E).

    Parameters
    ----------
    order : int32 array, shape [episodes, ops]
    entered : int32 array, shape [episodes, ops]
        Filled, by step of the op's own choice.
    """
    step_of = np.empty(order.shape[1], np.int32)
    for episode in range(order.shape[0]):
        for step in range(order.shape[1]):
            step_of[order[episode, step]] = step
        for step in range(order.shape[1]):
            op = order[episode, step]
            first = 0
            for edge in range(pred_ptr[op], pred_ptr[op + 1]):
                first = max(first, step_of[pred[edge]] + 1)
            entered[episode, step] = first


def select_log_probabilities(logits: Tensor, arrays: Arrays, order: IntArray) -> Tensor:
    """Log-probability of each of SEL's choices.

    The normaliser at step t sums exp(logit) over the ops that entered at or before t and left at
    or after t: each op adds at its entry and subtracts after its choice, and one cumulative sum
    gives every step. O(episodes x ops + edges).

    Parameters
    ----------
    logits : tensor, shape [ops]
        Within +-10, so that the sums stay exact in float64.
    arrays : Arrays
    order : int32 array, shape [episodes, ops]

    Returns
    -------
    float64 tensor, shape [episodes, ops]
    """
    entered = np.empty_like(order)
    entry_steps(arrays.pred_ptr, arrays.pred, order, entered)
    chosen = logits.double()[torch.from_numpy(order.astype(np.int64))]
    weight = chosen.exp()
    change = torch.zeros(order.shape[0], order.shape[1] + 1, dtype=torch.float64)
    change = change.scatter_add(1, torch.from_numpy(entered.astype(np.int64)), weight)
    left = torch.cat([torch.zeros_like(weight[:, :1]), weight], dim=1)
    normaliser = torch.cumsum(change - left, dim=1)[:, :-1]
    # The op itself is always a candidate; what rounding leaves below that is not a sum.
    return chosen - torch.log(torch.maximum(normaliser, weight))


def device_state(heads: Heads, order: Tensor, choice: Tensor, n_devices: int) -> Tensor:
    """Mean code, with one zero beside it, of the ops on each device before each step.

    Returns
    -------
    float tensor, shape [episodes, ops, devices, code]
    """
    taken = torch.nn.functional.one_hot(choice, n_devices).to(heads.code.dtype)
    added = taken.unsqueeze(-1) * heads.code[order].unsqueeze(-2)
    total = torch.cumsum(added, dim=1) - added
    count = torch.cumsum(taken, dim=1) - taken
    return total / (1.0 + count).unsqueeze(-1)


def log_probabilities(
    policy: DualNetwork, heads: Heads, problem: Problem, record: Record
) -> LogProbabilities:
    """Compute all log-probabilities of a recorded batch of episodes in one pass.

    O(episodes x ops x devices x hidden).
    """
    order = torch.from_numpy(record.order.astype(np.int64))
    choice = torch.from_numpy(record.choice.astype(np.int64))
    features = torch.from_numpy(record.features)
    state = device_state(heads, order, choice, problem.n_devices)
    style = torch.from_numpy(record.style).float()
    score = policy.score(heads, order, features, state, style.exp())
    score = score.masked_fill(~torch.from_numpy(record.allowed), -torch.inf)
    return LogProbabilities(
        select_log_probabilities(heads.logits, problem.arrays, record.order),
        torch.log_softmax(score, dim=-1),
        style_density(heads.style, style),
    )


def style_density(mean: Tensor, style: Tensor) -> Tensor:
    """Logarithm of the normal density of each style, spread as in training, shape [episodes].

    Parameters
    ----------
    mean : float tensor, shape [device features]
    style : float tensor, shape [episodes, device features]
    """
    spread = torch.from_numpy(STYLED).float()
    varied = spread > 0
    distance = (style - mean)[:, varied] / spread[varied]
    return -0.5 * (distance**2).sum(dim=1)
