"""A short name for what a graph is, so that a result can say which graph it is for."""

from __future__ import annotations

import hashlib

import numpy as np

from doppler.graph.graph import Graph


def fingerprint(graph: Graph) -> str:
    """Hash all that decides how good a placement is: edges, costs, pins and colocation.

    Names and kinds do not count, so that a graph keeps its fingerprint from one file format to
    another.

    Parameters
    ----------
    graph : Graph

    Returns
    -------
    str
        16 hexadecimal digits. O(V + E).
    """
    digest = hashlib.sha256(str(graph.n_ops).encode())
    columns = {
        "src": graph.src,
        "dst": graph.dst,
        "flops": graph.flops,
        "output_bytes": graph.output_bytes,
        "param_bytes": graph.param_bytes,
        "bytes_read": graph.bytes_read,
        "pinned": graph.pinned,
        "colocation": graph.colocation,
        "compute_s": graph.compute_s,
        "transfer_s": graph.transfer_s,
        **{f"class {kind}": graph.class_compute_s[kind] for kind in sorted(graph.class_compute_s)},
    }
    for name, column in columns.items():
        if column is not None:
            digest.update(name.encode())
            # Bytes in one order on every machine.
            little = column.astype(column.dtype.newbyteorder("<"), copy=False)
            digest.update(np.ascontiguousarray(little).tobytes())
    return digest.hexdigest()[:16]
