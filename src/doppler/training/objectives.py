"""What learning from a batch of episodes lowers: REINFORCE's loss, and imitation's."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from doppler.policy.likelihood import LogProbabilities
from doppler.policy.rollout import Record
from doppler.training.gradient import taken


def advantages(
    costs: npt.NDArray[np.float64], compared: npt.NDArray[np.float64], most: float
) -> Tensor:
    """Say how much better than a batch each of some episodes is.

    Parameters
    ----------
    costs : float64 array, shape [episodes]
        Of the batch, whose mean is the baseline and whose standard deviation the unit.
    compared : float64 array, shape [others]
    most : float
        Bound from above.

    Returns
    -------
    float64 tensor, shape [others]
    """
    deviation = float(costs.std())
    scale = 1.0 / deviation if deviation > 1e-9 * float(costs.mean()) else 0.0
    return torch.from_numpy(np.minimum((costs.mean() - compared) * scale, most))


@dataclass(frozen=True, eq=False)
class PolicyGradient:
    """REINFORCE (Williams, 1992): raise the likelihood of what was better than its batch.

    Attributes
    ----------
    advantage : float64 tensor, shape [episodes]
    share : float
        Factor on the sum over the episodes.
    entropy : float
        Weight of PLC's mean entropy.
    entropy_share : float
        Factor on that.
    select, place : bool
        Whether SEL learns, and PLC; not both False.
    """

    advantage: Tensor
    share: float
    entropy: float = 0.0
    entropy_share: float = 1.0
    select: bool = True
    place: bool = True

    def __call__(
        self, found: LogProbabilities, record: Record, chunk: slice
    ) -> tuple[Tensor, dict[str, float]]:
        """Return the loss of a chunk of episodes, and its part of PLC's mean entropy."""
        n_ops = record.order.shape[1]
        likely = taken(found, record, select=self.select, place=self.place).sum(dim=1)
        loss = -(self.advantage[chunk] * likely).sum() * self.share
        finite = found.place.masked_fill(found.place == -torch.inf, 0.0)
        entropy = -(finite.exp() * finite).sum() / (len(self.advantage) * n_ops)
        if self.entropy > 0 and self.place:
            loss = loss - self.entropy * n_ops * entropy * self.entropy_share
        return loss, {"place_entropy": entropy.item()}


@dataclass(frozen=True, eq=False)
class Imitation:
    """Raise the likelihood of a teacher's choices.

    SEL learns the teacher's order; PLC learns the set of devices that the teacher held for equally
    good: its loss is -log of their total probability.

    Attributes
    ----------
    tied : bool array, shape [traces, ops, devices]
        The devices that were as good, by step.
    select, place : bool
        Whether SEL learns, and PLC; not both False.
    """

    tied: npt.NDArray[np.bool_]
    select: bool = True
    place: bool = True

    def __call__(
        self, found: LogProbabilities, record: Record, chunk: slice
    ) -> tuple[Tensor, dict[str, float]]:
        """Return the loss of a chunk of traces, per step, and how often PLC agrees."""
        share = 1.0 / self.tied[:, :, 0].size
        right = torch.from_numpy(self.tied[chunk] & record.allowed)
        place = torch.logsumexp(found.place.masked_fill(~right, -torch.inf), dim=-1)
        select_loss, place_loss = -found.select.sum() * share, -place.sum() * share
        best = found.place.argmax(dim=-1, keepdim=True)
        both = self.select and self.place
        loss = select_loss + place_loss if both else select_loss if self.select else place_loss
        return loss, {
            "select_loss": select_loss.item(),
            "place_loss": place_loss.item(),
            "place_accuracy": right.gather(-1, best).sum().item() * share,
        }
