"""A policy for inference: its weights as arrays. Nothing here imports torch, which takes a second.

:class:`~doppler.policy.network.DualPolicy` is the same network for learning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from doppler.kernels import kernel
from doppler.policy.features import (
    DEVICE_FEATURES,
    NODE_FEATURES,
    STYLED,
    SUMMARY_SIZE,
    FeatureSet,
    node_features,
    problem_summary,
)
from doppler.policy.hint import SUMMARY, Hint
from doppler.policy.rollout import Weights
from doppler.problem import Problem

SingleArray = npt.NDArray[np.float32]

# Float64 normalizers of a whole episode stay exact while no logit leaves this range.
LOGIT_RANGE = 10.0
# A style changes a weight by at most e to this.
STYLE_RANGE = 3.0
# Scores are that many times what the layers give, so that a step of the optimizer, which moves each
# weight about as far, moves them about as far as they have to go.
SCORE_SCALE = 12.0
# Beside the variance in a layer norm.
NORM_EPSILON = 1e-5
# Ops of a large graph that are updated at a time.
CHUNK = 32768


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

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every weight, by name."""
        width, hidden = self.embedding, self.hidden
        rounds = [f"encoder.rounds.{layer}" for layer in range(self.layers)]
        matrices = {
            "encoder.enter": (width, len(NODE_FEATURES)),
            **{f"{name}.own": (width, width) for name in rounds},
            "select_hidden": (width, width),
            "select_out": (1, width),
            "select_direct": (1, len(NODE_FEATURES)),
            "node": (hidden, width),
            "code": (self.code, width),
            "style_hidden": (hidden, SUMMARY_SIZE + len(SUMMARY)),
            "style_out": (len(DEVICE_FEATURES), hidden),
        }
        without_bias = {
            **{f"{name}.producers": (width, width) for name in rounds},
            **{f"{name}.consumers": (width, width) for name in rounds},
            "first": (hidden, len(DEVICE_FEATURES)),
            "first_code": (hidden, self.code),
            "second": (1, hidden),
            "direct": (1, len(DEVICE_FEATURES)),
        }
        norms = [f"{name}.norm" for name in (*rounds, "encoder")]
        return {
            **{f"{name}.weight": shape for name, shape in (matrices | without_bias).items()},
            **{f"{name}.bias": shape[:1] for name, shape in matrices.items()},
            **{f"{name}.{part}": (width,) for name in norms for part in ("weight", "bias")},
        }


@dataclass(frozen=True, eq=False)
class FrozenPolicy:
    """SEL and PLC over one encoder.

    Attributes
    ----------
    sizes : Sizes
    features : FeatureSet
        The device features that PLC reads.
    weights : mapping of str to float32 array
        By name, in the shapes of :meth:`Sizes.shapes`.
    """

    sizes: Sizes
    features: FeatureSet
    weights: Mapping[str, SingleArray]

    def frozen(self) -> FrozenPolicy:
        """Return itself."""
        return self

    def encode(self, problem: Problem) -> Callable[[Hint | None], Weights]:
        """Encode a problem, for episodes with any hint. O((V + E) x embedding x layers).

        Returns
        -------
        callable
            Maps the hint that episodes see, or None, to what the rollout kernel needs.
        """
        inputs = node_features(problem)
        embedded = self._embed(inputs, problem)
        raw = self._linear("select_out", _relu(self._linear("select_hidden", embedded)))
        raw = (raw + self._linear("select_direct", inputs))[:, 0]
        logits = (np.float32(LOGIT_RANGE) * np.tanh(raw)).astype(np.float64)
        node, code = self._linear("node", embedded), self._linear("code", embedded)
        used = np.array(self.features.used, np.float32)
        weights, scale = self.weights, np.float32(SCORE_SCALE)
        first = np.ascontiguousarray((weights["first.weight"] * used).T)
        first_code = np.ascontiguousarray(weights["first_code.weight"].T)
        second = scale * weights["second.weight"][0]
        direct = scale * weights["direct.weight"][0] * used
        summary = problem_summary(problem, inputs)

        def weigh(hint: Hint | None) -> Weights:
            style = self._style(summary, hint)
            return Weights(logits, node, code, first, first_code, second, direct, style)

        return weigh

    def _embed(self, inputs: SingleArray, problem: Problem) -> SingleArray:
        arrays = problem.arrays
        h = _relu(self._linear("encoder.enter", inputs))
        producers, consumers = np.empty_like(h), np.empty_like(h)
        for layer in range(self.sizes.layers):
            name = f"encoder.rounds.{layer}"
            _mean(arrays.pred_ptr, arrays.pred, h, producers)
            _mean(arrays.succ_ptr, arrays.succ, h, consumers)
            for first in range(0, len(h), CHUNK):
                part = slice(first, first + CHUNK)
                message = self._linear(f"{name}.own", h[part])
                message += producers[part] @ self.weights[f"{name}.producers.weight"].T
                message += consumers[part] @ self.weights[f"{name}.consumers.weight"].T
                h[part] += _relu(self._norm(f"{name}.norm", message))
        return self._norm("encoder.norm", h)

    def _style(self, summary: SingleArray, hint: Hint | None) -> npt.NDArray[np.float64]:
        given = np.zeros(len(SUMMARY), np.float32) if hint is None else hint.summary
        seen = np.concatenate([summary, given])
        raw = self._linear("style_out", _relu(self._linear("style_hidden", seen)))
        bound = np.float32(STYLE_RANGE)
        return np.where(STYLED > 0, bound * np.tanh(raw / bound), 0.0).astype(np.float64)

    def _linear(self, name: str, x: SingleArray) -> SingleArray:
        found: SingleArray = x @ self.weights[f"{name}.weight"].T
        found += self.weights[f"{name}.bias"]
        return found

    def _norm(self, name: str, x: SingleArray) -> SingleArray:
        centered: SingleArray = x - x.mean(axis=-1, keepdims=True)
        variance = np.square(centered).mean(axis=-1, keepdims=True)
        centered /= np.sqrt(variance + np.float32(NORM_EPSILON))
        centered *= self.weights[f"{name}.weight"]
        centered += self.weights[f"{name}.bias"]
        return centered


def _relu(x: SingleArray) -> SingleArray:
    return np.maximum(x, 0, out=x)


@kernel
def _mean(ptr, others, h, mean):  # type: ignore[no-untyped-def]
    """Average the embeddings of each op's neighbors; zeros where there are none. O(E x size)."""
    mean[:] = 0.0
    for op in range(len(ptr) - 1):
        for edge in range(ptr[op], ptr[op + 1]):
            for unit in range(h.shape[1]):
                mean[op, unit] += h[others[edge], unit]
        degree = ptr[op + 1] - ptr[op]
        if degree > 1:
            for unit in range(h.shape[1]):
                mean[op, unit] /= np.float32(degree)
