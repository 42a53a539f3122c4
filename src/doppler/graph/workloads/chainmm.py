"""CHAINMM: (A x B) + (C x (D x E))."""

from __future__ import annotations

from doppler.graph.graph import Graph
from doppler.graph.workloads.program import WorkloadProgram
from doppler.graph.workloads.sharding import shard
from doppler.graph.workloads.tiling import Tiles, resolve_tiles

#: Tiles of each dimension where the caller gives none.
TILES = {"m": 2, "k": 4, "n": 2, "p": 4, "q": 2}


def chainmm(
    m: int = 20_000,
    k: int = 20_000,
    n: int = 20_000,
    p: int = 20_000,
    q: int = 20_000,
    *,
    tiles: Tiles = None,
    dtype_bytes: int = 4,
) -> Graph:
    """Make the graph of (A x B) + (C x (D x E)).

    Parameters
    ----------
    m, k, n, p, q : int
        Sizes: A [m, k], B [k, n], C [m, p], D [p, q], E [q, n].
    tiles : int or mapping of str to int, optional
        Tiles of every dimension, or of the dimensions named; default 2 of m, n and q, 4 of k
        and p.
    dtype_bytes : int
        Bytes of one element.

    Returns
    -------
    Graph
        Its result is ``"total"``, [m, n].

    Raises
    ------
    GraphError, UnknownNameError
        On a size or a number of tiles that is not a whole number >= 1, more tiles than elements,
        or an unknown dimension.
    """
    program = WorkloadProgram("chainmm", {"m": m, "k": k, "n": n, "p": p, "q": q})
    a = program.input("A", ("m", "k"))
    b = program.input("B", ("k", "n"))
    c = program.input("C", ("m", "p"))
    d = program.input("D", ("p", "q"))
    e = program.input("E", ("q", "n"))
    left = program.einsum("AB", (a, b), ("m", "n"))
    inner = program.einsum("DE", (d, e), ("p", "n"))
    right = program.einsum("CDE", (c, inner), ("m", "n"))
    program.result(program.elementwise("total", "add", (left, right)))
    counts = resolve_tiles(program.name, program.sizes, TILES, tiles)
    return shard(program, counts, dtype_bytes=dtype_bytes)
