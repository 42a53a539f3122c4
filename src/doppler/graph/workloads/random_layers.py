"""A random layered graph: work without any symmetry."""

from __future__ import annotations

import numpy as np

from doppler.checks import check_number, check_whole
from doppler.errors import GraphError
from doppler.graph.graph import Graph
from doppler.graph.workloads.operators import MOST, build, check_count
from doppler.graph.workloads.program import check_size

# An input comes from the layer before with this probability, else from one further back; the next
# one again with this probability, and so on.
_NEAR = 0.7
# A device of ``uniform:K`` computes so many while one of its links moves a byte.
_FLOPS_PER_BYTE = 1_000.0


def random_layers(
    layers: int = 60,
    width: int = 40,
    degree: int = 3,
    ccr: float = 1.0,
    *,
    flops: float = 1e9,
    spread: float = 0.5,
    seed: int = 0,
) -> Graph:
    """Make a random layered graph. It has modeled costs and no executable ops.

    Each layer has between half and one and a half times ``width`` ops, drawn at random. Each op
    reads between 1 and ``2 * degree - 1`` different outputs, ``degree`` on average, one of them of
    the layer before and the others of that or an earlier one, the nearer the likelier. As in the
    generators of random task graphs by which list schedulers are compared (Topcuoglu et al.,
    "Performance-effective and low-complexity task scheduling for heterogeneous computing", IEEE
    TPDS 2002), the communication-to-computation ratio says how heavy transfers are.

    Parameters
    ----------
    layers, width, degree : int
        How many layers, ops in a layer on average, and inputs of an op on average.
    ccr : float
        Mean time of a transfer over mean time of an op, on the devices and links of
        ``uniform:K``: 0.1 is light, 1 is heavy.
    flops : float
        Mean floating-point operations of an op.
    spread : float
        Standard deviation of the logarithm of flops and of output bytes, which are log-normal and
        independent.
    seed : int
        Equal seeds give equal graphs.

    Returns
    -------
    Graph
        An op's meta-op is its layer: ``"layer7"``.

    Raises
    ------
    GraphError
        On a size that is not a whole number >= 1, a number that is negative or not finite, or
        more inputs than a graph should have.
    """
    where = "random_layers"
    for name, size in (("layers", layers), ("width", width), ("degree", degree)):
        check_size(where, name, size)
    for name, number in (("ccr", ccr), ("flops", flops), ("spread", spread)):
        check_number(number, f"{where}: {name}", 0, MOST, error=GraphError)
    check_count(where, "inputs", layers * width * degree)
    rng = np.random.default_rng(check_whole(seed, f"{where}: seed", 0, error=GraphError))
    counts = rng.integers((width + 1) // 2, width + width // 2 + 1, size=layers)
    first = np.concatenate([[0], np.cumsum(counts)])
    layer = np.repeat(np.arange(layers), counts)
    later = np.arange(first[1], first[-1])
    inputs = rng.integers(1, 2 * degree, size=later.size)
    dst = np.repeat(later, inputs)
    back = np.minimum(rng.geometric(_NEAR, size=dst.size), layer[dst])
    back[np.concatenate([[0], np.cumsum(inputs)[:-1]]) if later.size else slice(0)] = 1
    source = layer[dst] - back
    src = first[source] + (rng.random(dst.size) * counts[source]).astype(np.int64)
    # Of mean 1. What is beyond all numbers is refused with the graph.
    with np.errstate(over="ignore"):
        factors = np.exp(rng.standard_normal((2, layer.size)) * spread - spread**2 / 2)
    return build(
        where,
        src,
        dst,
        flops=flops * factors[0],
        output_bytes=ccr * flops / _FLOPS_PER_BYTE * factors[1],
        kinds=["op"] * layer.size,
        meta_ops=[f"layer{number}" for number in layer.tolist()],
        shards=np.arange(layer.size) - first[layer],
    )
