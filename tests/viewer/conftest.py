from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

from doppler import Cluster, Graph, Placement, Problem, Trace, simulate

NASTY = ("</script><script>alert(1)</script>", "a\"b'c&amp;", "Ω→\u2028\u2029", "\x1b[31mred", "")


@pytest.fixture
def layered() -> Callable[..., Graph]:
    def make(levels: int, width: int, seed: int = 0) -> Graph:
        rng = np.random.default_rng(seed)
        n = levels * width
        dst = np.arange(width, n).repeat(2)
        src = (dst // width - 1) * width + rng.integers(0, width, dst.size)
        return Graph.build(
            n,
            src,
            dst,
            name="layered",
            names=[f"op[{i}]" for i in range(n)],
            kinds=[("matmul", "add", "norm")[i // width % 3] for i in range(n)],
            meta_ops=[f"meta{i // width}" for i in range(n)],
            shards=np.arange(n) % width,
            compute_s=rng.gamma(2, 1e-3, n),
            transfer_s=rng.gamma(2, 5e-4, n),
        )

    return make


@pytest.fixture
def ran() -> Callable[[Graph, int], tuple[Problem, Trace]]:
    def run(graph: Graph, devices: int) -> tuple[Problem, Trace]:
        problem = Problem(graph, Cluster.uniform(devices))
        trace = simulate(problem, Placement(np.arange(graph.n_ops) % devices)).trace
        return problem, trace

    return run


@pytest.fixture
def nasty() -> Graph:
    n = len(NASTY)
    return Graph.build(
        n,
        [0, 1],
        [1, 2],
        name=NASTY[0],
        names=NASTY,
        kinds=NASTY,
        meta_ops=NASTY,
        compute_s=np.ones(n),
        transfer_s=np.ones(n),
    )


@pytest.fixture
def no_devices() -> Trace:
    none, never = np.zeros(0, np.int32), np.zeros(0)
    return Trace(none, none, never, never, none, none, none, never, never, none, ())


@pytest.fixture
def assert_self_contained() -> Callable[[str], None]:
    def check(page: str) -> None:
        text = page.replace('xmlns="http://www.w3.org/2000/svg"', "")
        assert not re.search(r"https?://|(?:src|href)\s*=\s*[\"'](?!#)|@import|url\(", text)
        assert page.startswith("<!DOCTYPE html>")
        assert page.rstrip().endswith("</html>")

    return check
