"""How many tiles each dimension of a workload is split into."""

from __future__ import annotations

from collections.abc import Mapping

from doppler.checks import check_whole
from doppler.errors import GraphError, UnknownNameError

Tiles = int | Mapping[str, int] | None


def resolve_tiles(
    workload: str, sizes: Mapping[str, int], defaults: Mapping[str, int], tiles: Tiles
) -> dict[str, int]:
    """Give every dimension its number of tiles.

    Parameters
    ----------
    workload : str
        Name for error messages.
    sizes : mapping of str to int
        Size of each dimension.
    defaults : mapping of str to int
        The workload's own tiling; dimensions it does not name are not split. A dimension smaller
        than its default is split into single elements.
    tiles : int, mapping of str to int, or None
        None: the defaults. An int: that many tiles of every dimension that ``defaults`` names,
        at most its size. A mapping: overrides the defaults of the dimensions that it names.

    Returns
    -------
    dict of str to int
        Number of tiles of every dimension, between 1 and its size.

    Raises
    ------
    UnknownNameError
        If the mapping names a dimension that the workload lacks.
    GraphError
        If a number of tiles is not a whole number >= 1, or is larger than the dimension.
    """
    counts = {name: min(defaults.get(name, 1), size) for name, size in sizes.items()}
    if tiles is None:
        return counts
    if not isinstance(tiles, Mapping):
        check_whole(tiles, f"{workload}: tiles", 1, error=GraphError)
        return {name: min(tiles, size) if name in defaults else 1 for name, size in sizes.items()}
    for name, count in tiles.items():
        if name not in sizes:
            raise UnknownNameError(f"dimension of {workload}", name, sizes)
        check_whole(count, f"{workload}: tiles of {name}", 1, error=GraphError)
        if count > sizes[name]:
            raise GraphError(
                f"{workload}: dimension {name!r} of size {sizes[name]} cannot be split into "
                f"{count} tiles"
            )
        counts[name] = count
    return counts


def tile_bounds(size: int, count: int) -> tuple[int, ...]:
    """Bounds of ``count`` tiles of a dimension, [count + 1]; tiles differ by at most one."""
    return tuple(tile * size // count for tile in range(count + 1))
