"""A mixture-of-experts layer with static top-k routing."""

from __future__ import annotations

import math

from doppler.checks import check_number
from doppler.errors import GraphError
from doppler.graph.graph import Graph
from doppler.graph.workloads.program import WorkloadProgram, check_size
from doppler.graph.workloads.sharding import shard
from doppler.graph.workloads.tiling import Tiles, resolve_tiles

#: Tiles of each dimension where the caller gives none; further dimensions are not split.
TILES = {"sequence": 2, "hidden": 2, "experts": 4, "intermediate": 2}


def moe_layer(
    sequence: int = 4_096,
    hidden: int = 4_096,
    experts: int = 8,
    top_k: int = 2,
    intermediate: int = 14_336,
    capacity_factor: float = 1.0,
    *,
    tiles: Tiles = None,
    dtype_bytes: int = 4,
) -> Graph:
    """Make the graph of a mixture-of-experts layer, x + moe(rms_norm(x)).

    Which token goes to which expert is static, as far as the graph is concerned: every expert
    holds a fixed number of slots, and the one-hot input ``"dispatch"`` [experts, capacity,
    sequence] says which token fills which slot. Dispatch and combination are einsums with it, as
    in GShard (Lepikhin et al., ICLR 2021). The weights of a token's experts are computed in the
    graph: the router's softmax, normalized over the experts that the token was given. Experts
    are SwiGLU blocks, as in Mixtral (Jiang et al., 2024), whose 8x7B is the default.

    Parameters
    ----------
    sequence, hidden, experts, intermediate : int
        Tokens, width, number of experts, and width of an expert.
    top_k : int
        Experts per token.
    capacity_factor : float
        Slots of all experts together, as a multiple of ``sequence * top_k``; rounded up to the
        next whole number of slots per expert.
    tiles : int or mapping of str to int, optional
        Tiles of the dimensions ``sequence``, ``hidden``, ``experts``, ``intermediate``,
        ``capacity`` (slots of an expert) and ``choices`` (experts, in the router). An int leaves
        the last two unsplit.
    dtype_bytes : int
        Bytes of one element.

    Returns
    -------
    Graph
        Its result is ``"residual"``, [sequence, hidden].

    Raises
    ------
    GraphError, UnknownNameError
        As :func:`doppler.workloads.chainmm`, and where ``top_k`` is larger than ``experts`` or
        the capacity factor is not a positive number.
    """
    for name, size in (("sequence", sequence), ("experts", experts), ("top_k", top_k)):
        check_size("moe_layer", name, size)
    if top_k > experts:
        raise GraphError(f"moe_layer: top_k {top_k} is larger than the number of experts {experts}")
    capacity = _capacity(sequence, experts, top_k, capacity_factor)
    program = WorkloadProgram(
        "moe_layer",
        {
            "sequence": sequence,
            "hidden": hidden,
            "experts": experts,
            "choices": experts,
            "capacity": capacity,
            "intermediate": intermediate,
        },
    )
    x = program.input("x", ("sequence", "hidden"))
    dispatch = program.input(
        "dispatch", ("experts", "capacity", "sequence"), kind="one_hot_top_k", top_k=top_k
    )
    norm_weight = program.parameter("norm_weight", ("hidden",), kind="constant", value=1.0)
    w_router = program.parameter("Wrouter", ("hidden", "choices"))
    w_gate = program.parameter("Wgate", ("experts", "hidden", "intermediate"))
    w_up = program.parameter("Wup", ("experts", "hidden", "intermediate"))
    w_down = program.parameter("Wdown", ("experts", "intermediate", "hidden"))

    normed = program.rms_norm("norm", x, norm_weight, "hidden")
    logits = program.einsum("router", (normed, w_router), ("sequence", "choices"))
    odds = program.softmax("odds", logits, "choices")
    chosen = program.reduce("chosen", "sum", dispatch, "capacity").rename(experts="choices")
    kept = program.elementwise("kept_odds", "multiply", (odds, chosen))
    total = program.reduce("kept_total", "sum", kept, "choices")
    # A token that found no free slot has no odds left: its weights are 0, not 0 / 0.
    weights = program.elementwise("token_weights", "divide_or_zero", (kept, total))
    slot_weights = program.einsum(
        "slot_weights", (dispatch, weights.rename(choices="experts")), ("experts", "capacity")
    )

    slots = ("experts", "capacity")
    tokens = program.einsum("tokens", (dispatch, normed), (*slots, "hidden"))
    gate = program.einsum("gate", (tokens, w_gate), (*slots, "intermediate"))
    up = program.einsum("up", (tokens, w_up), (*slots, "intermediate"))
    gated = program.elementwise("swiglu", "silu_multiply", (gate, up))
    down = program.einsum("down", (gated, w_down), (*slots, "hidden"))
    weighted = program.elementwise("weighted", "multiply", (down, slot_weights))
    combined = program.einsum("combined", (dispatch, weighted), ("sequence", "hidden"))
    program.result(program.elementwise("residual", "add", (x, combined)))
    counts = resolve_tiles(program.name, program.sizes, TILES, tiles)
    return shard(program, counts, dtype_bytes=dtype_bytes)


def _capacity(sequence: int, experts: int, top_k: int, factor: float) -> int:
    check_number(factor, "moe_layer: capacity_factor", 0, 1e6, above=True, error=GraphError)
    # An expert never needs more slots than there are tokens.
    return min(sequence, math.ceil(sequence * top_k * factor / experts))
