"""Llama: the attention block, and whole layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from doppler.errors import GraphError
from doppler.graph.graph import Graph
from doppler.graph.workloads.program import Value, WorkloadProgram, check_size
from doppler.graph.workloads.sharding import shard
from doppler.graph.workloads.tiling import Tiles, resolve_tiles

#: Tiles of each dimension where the caller gives none; further dimensions are not split.
TILES = {
    "sequence": 2,
    "hidden": 2,
    "query_features": 4,
    "kv_features": 4,
    "kv_heads": 4,
    "intermediate": 2,
}
ROTARY_BASE = 10_000.0


# Far beyond any model; a slip must not fill the memory.
_MAX_LAYERS = 10_000


def llama_block(
    sequence: int = 4_096,
    hidden: int = 4_096,
    heads: int = 32,
    kv_heads: int | None = None,
    *,
    causal: bool = True,
    tiles: Tiles = None,
    dtype_bytes: int = 4,
) -> Graph:
    """Make the graph of a Llama attention block, x + attention(rms_norm(x)).

    Grouped-query attention with rotary position embeddings, as in Touvron et al., "Llama 2"
    (2023), batch 1.

    Parameters
    ----------
    sequence, hidden, heads : int
        Tokens, width, and query heads; the defaults are Llama 7B.
    kv_heads : int, optional
        Heads of keys and values, a divisor of ``heads``; default ``heads``.
    causal : bool
        Whether a mask hides later tokens from earlier ones.
    tiles : int or mapping of str to int, optional
        Tiles of the dimensions: ``sequence`` (tokens, and rows of the attention), ``keys`` (its
        columns), ``hidden``, ``query_features`` and ``kv_features`` (outputs of the projections),
        ``kv_heads``, ``group`` (query heads that share a key head), ``head_dim``. An int leaves
        keys, group and head_dim unsplit.
    dtype_bytes : int
        Bytes of one element.

    Returns
    -------
    Graph
        Its result is ``"layer0.attention_residual"``, [sequence, hidden].

    Raises
    ------
    GraphError, UnknownNameError
        As :func:`doppler.workloads.chainmm`, and where ``heads`` does not divide ``hidden``,
        ``kv_heads`` does not divide ``heads``, or the size of a head is odd.
    """
    program = WorkloadProgram(
        "llama_block", _attention_sizes("llama_block", sequence, hidden, heads, kv_heads)
    )
    x = program.input("x", ("sequence", "hidden"))
    context = _context(program, causal)
    program.result(_attention(program, x, context, "layer0"))
    return _shard(program, tiles, dtype_bytes)


def llama_layer(
    layers: int = 1,
    sequence: int = 4_096,
    hidden: int = 4_096,
    heads: int = 32,
    kv_heads: int | None = None,
    intermediate: int = 11_008,
    *,
    causal: bool = True,
    tiles: Tiles = None,
    dtype_bytes: int = 4,
) -> Graph:
    """Make the graph of whole Llama layers: the attention block, then the SwiGLU block.

    Parameters
    ----------
    layers : int
        How many layers follow each other, each with its own parameters.
    sequence, hidden, heads, kv_heads, causal, dtype_bytes
        As :func:`llama_block`.
    intermediate : int
        Width of the SwiGLU block.
    tiles : int or mapping of str to int, optional
        As :func:`llama_block`, and ``intermediate``.

    Returns
    -------
    Graph
        Its result is ``"layer{layers - 1}.mlp_residual"``, [sequence, hidden].

    Raises
    ------
    GraphError, UnknownNameError
        As :func:`llama_block`.
    """
    check_size("llama_layer", "layers", layers)
    if layers > _MAX_LAYERS:
        raise GraphError(f"llama_layer: layers is {layers}, must be at most {_MAX_LAYERS}")
    sizes = _attention_sizes("llama_layer", sequence, hidden, heads, kv_heads)
    program = WorkloadProgram("llama_layer", {**sizes, "intermediate": intermediate})
    x = program.input("x", ("sequence", "hidden"))
    context = _context(program, causal)
    for layer in range(layers):
        x = _attention(program, x, context, f"layer{layer}")
        x = _swiglu(program, x, f"layer{layer}")
    program.result(x)
    return _shard(program, tiles, dtype_bytes)


@dataclass(frozen=True, slots=True)
class _Context:
    """Inputs that all layers share: rotary tables [sequence, head_dim], mask [sequence, keys]."""

    cosine: Value
    sine: Value
    mask: Value | None


def _attention_sizes(
    workload: str, sequence: int, hidden: int, heads: int, kv_heads: int | None
) -> Mapping[str, int]:
    shared = heads if kv_heads is None else kv_heads
    for name, size in (("hidden", hidden), ("heads", heads), ("kv_heads", shared)):
        check_size(workload, name, size)
    if hidden % heads:
        raise GraphError(f"{workload}: hidden {hidden} is not divisible by heads {heads}")
    if heads % shared:
        raise GraphError(f"{workload}: heads {heads} is not divisible by kv_heads {shared}")
    if hidden // heads % 2:
        raise GraphError(
            f"{workload}: a head has {hidden // heads} features (hidden {hidden} / heads {heads}); "
            "rotary embeddings need an even number"
        )
    return {
        "sequence": sequence,
        "keys": sequence,
        "hidden": hidden,
        "query_features": hidden,
        "kv_features": hidden // heads * shared,
        "kv_heads": shared,
        "group": heads // shared,
        "head_dim": hidden // heads,
    }


def _context(program: WorkloadProgram, causal: bool) -> _Context:
    table = ("sequence", "head_dim")
    cosine = program.input("rotary_cosine", table, kind="rotary_cosine", base=ROTARY_BASE)
    sine = program.input("rotary_sine", table, kind="rotary_sine", base=ROTARY_BASE)
    mask = program.input("mask", ("sequence", "keys"), kind="causal_mask") if causal else None
    return _Context(cosine, sine, mask)


def _attention(program: WorkloadProgram, x: Value, context: _Context, layer: str) -> Value:
    norm_weight = program.parameter(
        f"{layer}.attention_norm_weight", ("hidden",), kind="constant", value=1.0
    )
    wq = program.parameter(f"{layer}.Wq", ("hidden", "query_features"))
    wk = program.parameter(f"{layer}.Wk", ("hidden", "kv_features"))
    wv = program.parameter(f"{layer}.Wv", ("hidden", "kv_features"))
    wo = program.parameter(f"{layer}.Wo", ("query_features", "hidden"))
    normed = program.rms_norm(f"{layer}.attention_norm", x, norm_weight, "hidden")
    queries = program.einsum(f"{layer}.q", (normed, wq), ("sequence", "query_features"))
    keys = program.einsum(f"{layer}.k", (normed, wk), ("sequence", "kv_features"))
    values = program.einsum(f"{layer}.v", (normed, wv), ("sequence", "kv_features"))

    query_heads = ("kv_heads", "group", "head_dim")
    rotary = (context.cosine, context.sine)
    queries = program.elementwise(
        f"{layer}.q_rotary",
        "rotary",
        (program.split(queries, "query_features", query_heads), *rotary),
        whole=("head_dim",),
    )
    keys = program.elementwise(
        f"{layer}.k_rotary",
        "rotary",
        (program.split(keys, "kv_features", ("kv_heads", "head_dim")), *rotary),
        whole=("head_dim",),
    )
    values = program.split(values, "kv_features", ("kv_heads", "head_dim"))

    scores = program.einsum(
        f"{layer}.scores",
        (queries, keys.rename(sequence="keys")),
        ("kv_heads", "group", "sequence", "keys"),
        scale=program.sizes["head_dim"] ** -0.5,
    )
    if context.mask is not None:
        scores = program.elementwise(f"{layer}.masked", "add", (scores, context.mask))
    weights = program.softmax(f"{layer}.weights", scores, "keys")
    mixed = program.einsum(
        f"{layer}.mixed",
        (weights, values.rename(sequence="keys")),
        ("sequence", *query_heads),
    )
    features = program.merge(mixed, query_heads, "query_features")
    output = program.einsum(f"{layer}.o", (features, wo), ("sequence", "hidden"))
    return program.elementwise(f"{layer}.attention_residual", "add", (x, output))


def _swiglu(program: WorkloadProgram, x: Value, layer: str) -> Value:
    norm_weight = program.parameter(
        f"{layer}.mlp_norm_weight", ("hidden",), kind="constant", value=1.0
    )
    w_gate = program.parameter(f"{layer}.Wgate", ("hidden", "intermediate"))
    w_up = program.parameter(f"{layer}.Wup", ("hidden", "intermediate"))
    w_down = program.parameter(f"{layer}.Wdown", ("intermediate", "hidden"))
    normed = program.rms_norm(f"{layer}.mlp_norm", x, norm_weight, "hidden")
    gate = program.einsum(f"{layer}.gate", (normed, w_gate), ("sequence", "intermediate"))
    up = program.einsum(f"{layer}.up", (normed, w_up), ("sequence", "intermediate"))
    gated = program.elementwise(f"{layer}.swiglu", "silu_multiply", (gate, up))
    down = program.einsum(f"{layer}.down", (gated, w_down), ("sequence", "hidden"))
    return program.elementwise(f"{layer}.mlp_residual", "add", (x, down))


def _shard(program: WorkloadProgram, tiles: Tiles, dtype_bytes: int) -> Graph:
    counts = resolve_tiles(program.name, program.sizes, TILES, tiles)
    return shard(program, counts, dtype_bytes=dtype_bytes)
