"""Tensor sharding: values of a program split along one axis, where that pays.

As a one-dimensional mesh of devices would have it, every value is whole, in tiles along one axis,
or a set of partial sums. A large product of a whole tensor with a weight is split along its output;
what follows keeps the tiles for as long as the signatures of its operators allow
(:mod:`doppler.capture.sharding_rules`): through elementwise operators, into heads and back, through
attention. The next product contracts them to partial sums, which a balanced tree adds. What has no
signature, or whose tiles do not come out even, gets the gathered value, so that the transformed
program computes what the first one does.
"""

from __future__ import annotations

from dataclasses import dataclass

from doppler.capture.lookahead import Lookahead
from doppler.capture.program import Program
from doppler.capture.schemas import ResultShapes
from doppler.capture.sharding_rules import AxisSignatures
from doppler.capture.tensor_sharder import Pays, Sharder, TensorSplit
from doppler.errors import GraphError

PAYS = Pays()


@dataclass(frozen=True)
class TensorSharding:
    """A sharded program, and what was split in it.

    Attributes
    ----------
    program : Program
        The very program that was given, if nothing was split.
    splits : tuple of TensorSplit
        Products, attention and tables in the order of the program; empty: nothing was split.
    """

    program: Program
    splits: tuple[TensorSplit, ...]


def shard_tensors(
    program: Program,
    ways: int,
    *,
    heads: bool = True,
    linear: bool = True,
    experts: bool = True,
    least_flops: float = Pays.flops,
    least_intensity: float = Pays.intensity,
    least_share: float = Pays.share,
    least_table_bytes: int = Pays.table_bytes,
) -> Program:
    """Split the tensors of a program, where that pays.

    Parameters
    ----------
    program : Program
        Functional calls.
    ways : int
        Tiles of a split value; where these do not come out even, fewer that do, or ones that
        differ by a step if these are done much sooner.
    heads, linear, experts : bool
        Whether to split attention by heads, products with a weight, and products with stacked
        weights along the stack.
    least_flops : float
        FLOPs that the split calls of a chain must have, from where whole values are split to where
        they are whole again.
    least_intensity : float
        FLOPs that they must have for each byte that is gathered, added or cut out for them.
    least_share : float
        FLOPs that they must have, as a share of those of the program.
    least_table_bytes : int
        Size from which on the table of an embedding is split along its width.

    Returns
    -------
    Program
        With the same sources and outputs; the very same program if nothing was split. A call that
        was split has as ``meta_op`` the name of what it was; gathers and sums are called
        ``NAME.gather`` and ``NAME.sum[i]``. An output may be in tiles.

    Raises
    ------
    GraphError
        If ``ways`` is less than 1.
    """
    pays = Pays(
        least_flops, least_intensity, least_share, least_table_bytes, heads, linear, experts
    )
    return find_sharding(program, ways, pays).program


def describe(program: Program, ways: int, pays: Pays = PAYS) -> tuple[TensorSplit, ...]:
    """Say what :func:`shard_tensors` would split, and how; nothing where it would leave all."""
    return find_sharding(program, ways, pays).splits


def was_split(program: Program) -> bool:
    """Tell whether any call of a program is a tile of another."""
    return any(call.tile for call in program.calls)


def find_sharding(program: Program, ways: int, pays: Pays = PAYS) -> TensorSharding:
    """Shard a program, and say what was split.

    Chains that turn out not to pay are left whole, and the program is sharded anew without them,
    until all pay: O(calls) for each time.
    """
    if ways < 1:
        raise GraphError(f"{program.name}: cannot split tensors {ways} ways; give 1 or more")
    if ways == 1:
        return TensorSharding(program, ())
    signatures, shapes = AxisSignatures(program), ResultShapes()
    ahead = Lookahead(program, signatures)
    denied: set[int] = set()
    while True:
        sharder = Sharder(program, ways, pays, signatures, ahead, shapes)
        sharder.run(denied)
        losing = sharder.losing()
        if not losing:
            break
        denied |= losing
    if not sharder.seeds:
        return TensorSharding(program, ())
    return TensorSharding(sharder.values.program(), tuple(sharder.splits))
