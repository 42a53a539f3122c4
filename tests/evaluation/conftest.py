"""Small problems and a small policy."""

from __future__ import annotations

import numpy as np
import pytest

from doppler import Cluster, Graph, Problem


@pytest.fixture(scope="session")
def problem() -> Problem:
    """Two layers of six ops on three devices with contended links."""
    src, dst = (side.ravel() for side in np.meshgrid(np.arange(6), np.arange(6, 12)))
    graph = Graph.from_arrays(src, dst, np.arange(1.0, 13.0), np.full(12, 0.5))
    return Problem(graph, Cluster.uniform(3))


@pytest.fixture(scope="session")
def policy():
    torch = pytest.importorskip("torch")
    from doppler.policy.frozen import Sizes
    from doppler.policy.network import DualPolicy

    torch.manual_seed(0)
    return DualPolicy(Sizes(embedding=8, layers=1, hidden=8, code=4)).eval()
