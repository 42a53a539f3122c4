"""What the operator graphs share: whole ops with modeled costs, none of them executable."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from doppler.errors import GraphError
from doppler.graph.graph import Graph

# Far beyond any model; a slip must not fill the memory.
_MOST = 50_000_000
# The square of a number, and more, is still a number.
MOST = 1e100


def build(
    name: str,
    src: npt.ArrayLike,
    dst: npt.ArrayLike,
    *,
    flops: npt.ArrayLike,
    output_bytes: npt.ArrayLike,
    kinds: Sequence[str],
    names: Sequence[str] | None = None,
    meta_ops: Sequence[str] | None = None,
    shards: npt.ArrayLike | None = None,
    tiles: npt.NDArray[np.int64] | None = None,
    param_bytes: npt.ArrayLike | None = None,
    weights_read: npt.ArrayLike | None = None,
) -> Graph:
    """Make a graph with modeled costs, where each op reads its inputs and its weights.

    Parameters
    ----------
    name : str
    src, dst : int array, shape [edges]
    flops, output_bytes : float array, shape [ops]
    kinds, names, meta_ops, shards, tiles
        As :meth:`doppler.Graph.build`.
    param_bytes : float array, shape [ops], optional
        What stays on the op's device.
    weights_read : float array, shape [ops], optional
        Bytes that an op reads beside its inputs; default ``param_bytes``.

    Raises
    ------
    GraphError
        As :meth:`doppler.Graph.build`.
    """
    made = np.asarray(output_bytes, np.float64)
    heads, tails = np.asarray(src, np.int64), np.asarray(dst, np.int64)
    edges = np.unique(heads * made.size + tails)
    heads, tails = edges // made.size, edges % made.size
    own = weights_read if weights_read is not None else param_bytes
    read = np.bincount(tails, weights=made[heads], minlength=made.size)
    return Graph.build(
        made.size,
        heads,
        tails,
        name=name,
        flops=flops,
        output_bytes=made,
        param_bytes=param_bytes,
        bytes_read=read if own is None else read + np.asarray(own),
        names=names,
        kinds=kinds,
        meta_ops=meta_ops,
        shards=shards,
        tiles=None if tiles is None else tiles.astype(np.int32),
    )


def check_count(workload: str, what: str, count: int) -> None:
    """Check that a graph does not grow beyond all bounds.

    Raises
    ------
    GraphError
        If it does.
    """
    if count > _MOST:
        raise GraphError(f"{workload}: {count:,} {what}, must be at most {_MOST:,}")
