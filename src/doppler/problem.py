"""A graph on a cluster, as arrays of seconds that every kernel reads."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from doppler.checks import check_type
from doppler.cluster import Cluster, Device
from doppler.errors import ProblemError
from doppler.graph.graph import Graph
from doppler.graph.levels import bottom_levels, top_levels
from doppler.graph.op_class import op_classes
from doppler.graph.shared_tiles import shared_tiles
from doppler.kernels import kernel

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int32]

# Links that much slower than the fastest lead out of a node.
NODE_RATIO = 1.5


class Arrays(NamedTuple):
    """What kernels read. Times in seconds, sizes in bytes, CSR adjacency.

    Every array is C-contiguous and read-only. Whatever else is handed to a kernel is C-contiguous
    and writable, so that each kernel is compiled for one set of types.

    Attributes
    ----------
    compute : float64 array, shape [ops, devices]
        Time of each op on each device; infinite where the op cannot run.
    volume : float64 array, shape [ops]
        What a link's ``factor`` multiplies: output bytes, or explicit seconds.
    latency, factor : float64 array, shape [devices, devices]
        Moving the output of ``u`` from ``a`` to ``b`` takes
        ``latency[a, b] + volume[u] * factor[a, b]``.
    channel : int32 array, shape [devices, devices]
        Channel on which the transfer takes its turn, or -1.
    succ_ptr, succ, pred_ptr, pred : int32 array
        Consumers and producers of each op.
    order : int32 array, shape [ops]
        A topological order.
    group : int32 array, shape [ops]
        Colocation group 0..groups-1, or -1.
    param_bytes, output_bytes : float64 array, shape [ops]
        Parameters that no other op reads, and output.
    tile_ptr, tile : int32 array, shape [ops + 1] and [reads]
        CSR: tiles of parameters that each op reads and others too. A device holds one once.
    tile_bytes : float64 array, shape [tiles]
    capacity : float64 array, shape [devices]
    n_channels, n_groups : int
    """

    compute: FloatArray
    volume: FloatArray
    latency: FloatArray
    factor: FloatArray
    channel: IntArray
    succ_ptr: IntArray
    succ: IntArray
    pred_ptr: IntArray
    pred: IntArray
    order: IntArray
    group: IntArray
    param_bytes: FloatArray
    output_bytes: FloatArray
    tile_ptr: IntArray
    tile: IntArray
    tile_bytes: FloatArray
    capacity: FloatArray
    n_channels: int
    n_groups: int


class Problem:
    """A graph on a cluster.

    Op time is ``launch_overhead + max(flops / achieved FLOP/s, bytes / memory bandwidth)`` (the
    roofline model of Williams et al., CACM 2009) with bytes read plus written; the seconds that
    the device was measured to take for the op's class, where it was; or the graph's explicit
    seconds times the device's slowdown, which come before both.

    Parameters
    ----------
    graph : Graph
    cluster : Cluster, optional
        Left out: the machine that the graph's file names.

    Attributes
    ----------
    arrays : Arrays
        What the kernels read.

    Raises
    ------
    ProblemError
        If the graph names no machine and no cluster is given, an op is pinned to a missing
        device, an op or a colocation group can run on no device, or all times one after another
        are more seconds than a number holds.
    """

    def __init__(self, graph: Graph, cluster: Cluster | None = None) -> None:
        check_type(graph, Graph, "graph")
        if cluster is None:
            if graph.machine is None:
                raise ProblemError(
                    f"{graph.source or graph.name}: the graph names no machine; give a cluster"
                )
            machine = graph.machine
            cluster = Cluster.accelerators_and_cpus(
                machine.accelerators, machine.cpus, machine.accelerator_memory
            )
        self.graph = graph
        self.cluster = check_type(cluster, Cluster, "cluster")
        self.arrays = _arrays(graph, cluster)

    @property
    def n_ops(self) -> int:
        """Number of ops."""
        return self.graph.n_ops

    @property
    def n_devices(self) -> int:
        """Number of devices."""
        return self.cluster.n_devices

    @cached_property
    def may_overflow(self) -> bool:
        """Whether some placement could exceed a device's memory.

        A device never holds more than every parameter and one copy of every output.
        """
        arrays = self.arrays
        most = arrays.param_bytes.sum() + arrays.tile_bytes.sum() + arrays.output_bytes.sum()
        return bool(most > arrays.capacity.min())

    @cached_property
    def lower_bound(self) -> float:
        """Seconds that no placement can beat.

        The larger of two relaxations: the longest path with every op on its fastest device and
        free transfers; and the best fractional split of the work, for which any weights ``y`` of
        the devices that sum to 1 give the bound ``sum_v min_d y_d compute[v, d]`` (linear
        programming duality); the weights are improved by a few subgradient steps.
        """
        compute = self.arrays.compute
        path = self.longest_path(self.least_compute)
        # Devices with equal times share one weight: that loses nothing, by symmetry.
        kinds, equal = np.unique(_columns(compute), return_index=True, return_counts=True)[1:]
        kinds, equal = kinds[np.argsort(kinds)], equal[np.argsort(kinds)]
        split: float = _fractional_split(np.ascontiguousarray(compute[:, kinds]), equal, 200)
        return max(path, split)

    @cached_property
    def nodes(self) -> IntArray:
        """Node of each device, shape [devices]: devices joined by links near the fastest they have.

        Two devices share a node if a byte between them takes at most ``NODE_RATIO`` times as long
        as on the fastest link of either; a node is a connected component of that. Nodes are
        numbered in the order of their first device.
        """
        factor = self.arrays.factor
        count = self.n_devices
        if count == 1:
            return np.zeros(1, np.int32)
        cost = np.maximum(factor, factor.T)
        np.fill_diagonal(cost, np.inf)
        fastest = cost.min(axis=1)
        near = cost <= NODE_RATIO * np.minimum(fastest[:, None], fastest[None, :])
        # Paths of up to 2, 4, 8, ... links, until there are no longer ones.
        joined, longer = near, near | np.eye(count, dtype=bool)
        while (longer != joined).any():
            joined, paths = longer, longer.astype(np.float32)
            longer = paths @ paths > 0
        first_device = joined.argmax(axis=1)
        return np.unique(first_device, return_inverse=True)[1].astype(np.int32)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of everything that the kernels read, in hexadecimal.

        Equal problems have equal fingerprints, whatever their graphs and clusters are called.
        """
        digest = hashlib.sha256()
        shared = bool(self.arrays.tile_bytes.size)
        for name, value in self.arrays._asdict().items():
            if name.startswith("tile") and not shared:
                continue
            array = np.ascontiguousarray(value)
            digest.update(f"{array.dtype}{array.shape}".encode())
            digest.update(array.tobytes())
        return digest.hexdigest()

    def longest_path(self, op_seconds: FloatArray, transfers: bool = False) -> float:
        """Length of the longest path, in seconds, with the given time of each op."""
        return float(self.b_level(op_seconds, transfers).max())

    def b_level(self, op_seconds: FloatArray, transfers: bool = False) -> FloatArray:
        """Longest path from each op to an exit, the op included. O(V + E).

        Parameters
        ----------
        op_seconds : float64 array, shape [ops]
        transfers : bool
            Whether every edge adds its mean transfer time.
        """
        arrays = self.arrays
        moved = self.mean_transfer if transfers else np.zeros(self.n_ops)
        return bottom_levels(arrays.order, arrays.succ_ptr, arrays.succ, op_seconds, moved)

    def t_level(self, op_seconds: FloatArray, transfers: bool = False) -> FloatArray:
        """Longest path from an entry to each op, the op left out. O(V + E)."""
        arrays = self.arrays
        moved = self.mean_transfer if transfers else np.zeros(self.n_ops)
        return top_levels(arrays.order, arrays.pred_ptr, arrays.pred, op_seconds, moved)

    @property
    def mean_compute(self) -> FloatArray:
        """Mean time of each op over the devices that can run it, seconds, shape [ops]."""
        return self._compute_summary[0]

    @property
    def least_compute(self) -> FloatArray:
        """Time of each op on its fastest device, seconds, shape [ops]."""
        return self._compute_summary[1]

    @property
    def most_compute(self) -> FloatArray:
        """Time of each op on the slowest device that can run it, seconds, shape [ops]."""
        return self._compute_summary[2]

    @cached_property
    def _compute_summary(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        mean, least, most = np.empty(self.n_ops), np.empty(self.n_ops), np.empty(self.n_ops)
        _summarize(self.arrays.compute, mean, least, most)
        return mean, least, most

    @cached_property
    def mean_transfer(self) -> FloatArray:
        """Mean time to move each op's output between two devices, seconds, shape [ops]."""
        count = self.n_devices
        if count == 1:
            return np.zeros(self.n_ops)
        off = ~np.eye(count, dtype=bool)
        arrays = self.arrays
        mean: FloatArray = (
            arrays.latency[off].mean() + arrays.volume * arrays.factor[off].mean()
        ) * np.ones(self.n_ops)
        return mean

    def __repr__(self) -> str:
        return f"Problem({self.graph!r}, {self.cluster.name!r})"


@kernel
def _fractional_split(compute, equal, steps):  # type: ignore[no-untyped-def]
    """Bound the largest load of any split of the work, see :attr:`Problem.lower_bound`.

    O(steps x ops x kinds).

    Parameters
    ----------
    compute : float64 array, shape [ops, kinds]
        Time of each op on each kind of device, seconds; infinite where it cannot run.
    equal : int64 array, shape [kinds]
        Number of devices of each kind.
    steps : int
        Of the subgradient method.

    Returns
    -------
    float
        Seconds.
    """
    n_ops, n_kinds = compute.shape
    weights = np.empty(n_kinds)
    load = np.empty(n_kinds)
    for kind in range(n_kinds):
        total, count = 0.0, 0
        for op in range(n_ops):
            if compute[op, kind] < np.inf:
                total += compute[op, kind]
                count += 1
        # A device that can run no op has no mean time, and gets next to no weight.
        mean = max(total / max(count, 1), 1e-300)
        weights[kind] = equal[kind] * ((1.0 / mean if count > 0 else 0.0) + 1e-12)
    weights /= weights.sum()
    best = 0.0
    for step in range(steps if n_kinds > 1 else 1):
        load[:] = 0.0
        bound = 0.0
        for op in range(n_ops):
            least = np.inf
            choice = 0
            for kind in range(n_kinds):
                weighted = compute[op, kind] * weights[kind] / equal[kind]
                if weighted < least:
                    least = weighted
                    choice = kind
            bound += least
            load[choice] += compute[op, choice] / equal[choice]
        best = max(best, bound)
        most = load.max()
        if most <= 0.0:
            break
        for kind in range(n_kinds):
            weights[kind] *= np.exp(0.5 / (1.0 + step) * (load[kind] / most - 1.0))
        weights /= weights.sum()
    return best


@kernel
def _columns(compute):  # type: ignore[no-untyped-def]
    """Return, for each device, the first device of the same times. O(V x devices) if few differ."""
    n_ops, n_devices = compute.shape
    same = np.zeros(n_devices, np.int64)
    # Most clusters are of one kind, which a walk along the rows sees much faster than columns do.
    alike = True
    for op in range(n_ops):
        for device in range(n_devices):
            alike = alike and compute[op, device] == compute[op, 0]
        if not alike:
            break
    if alike:
        return same
    for device in range(n_devices):
        for other in range(device + 1):
            same[device] = other
            if same[other] == other or other == device:
                equal = True
                for op in range(n_ops):
                    if compute[op, device] != compute[op, other]:
                        equal = False
                        break
                if equal:
                    break
    return same


@kernel
def _summarize(compute, mean, least, most):  # type: ignore[no-untyped-def]
    """Fill in the mean, the least and the most of the finite times of each op, in one pass."""
    for op in range(compute.shape[0]):
        total, count, fastest, slowest = 0.0, 0, np.inf, 0.0
        for device in range(compute.shape[1]):
            seconds = compute[op, device]
            if seconds < np.inf:
                total += seconds
                count += 1
                fastest = min(fastest, seconds)
                slowest = max(slowest, seconds)
        mean[op] = total / count
        least[op] = fastest
        most[op] = slowest


@kernel
def resident_bytes(arrays, devices, held, lies):  # type: ignore[no-untyped-def]
    """Add up the parameters that each device holds throughout a run. O(V + reads).

    Parameters
    ----------
    arrays : Arrays
    devices : int32 array, shape [ops]
    held : float64 array, shape [devices]
        Filled.
    lies : bool array, shape [tiles, devices]
        Filled: where each shared tile lies.
    """
    held[:] = 0.0
    lies[:] = False
    for op in range(len(devices)):
        device = devices[op]
        held[device] += arrays.param_bytes[op]
        for read in range(arrays.tile_ptr[op], arrays.tile_ptr[op + 1]):
            tile = arrays.tile[read]
            if not lies[tile, device]:
                lies[tile, device] = True
                held[device] += arrays.tile_bytes[tile]


def _arrays(graph: Graph, cluster: Cluster) -> Arrays:
    where = graph.source or graph.name
    group, n_groups = _groups(graph)
    compute = _compute(graph, cluster, where)
    _restrict(compute, graph, cluster, group, where)
    count = cluster.n_devices
    latency = np.zeros((count, count))
    factor = np.zeros((count, count))
    channel = np.full((count, count), -1, np.int32)
    explicit = graph.transfer_s is not None
    for link in cluster.links:
        pair = link.source, link.target
        # Explicit transfer seconds already hold the latency of the link they were measured on.
        latency[pair] = 0.0 if explicit else link.latency
        factor[pair] = link.hops if explicit else 1.0 / link.bandwidth
        channel[pair] = link.channel
    volume = graph.transfer_s if graph.transfer_s is not None else graph.output_bytes
    # The longest that any run could take; beyond all numbers, no placement could be told apart.
    with np.errstate(over="ignore"):
        longest = compute.max(axis=1, where=np.isfinite(compute), initial=0.0).sum()
        longest += count**2 * (volume.sum() * factor.max() + graph.n_ops * latency.max())
    if not np.isfinite(longest):
        raise ProblemError(f"{where}: the times of its ops and transfers add up beyond all numbers")
    succ_ptr, succ = graph.successors
    pred_ptr, pred = graph.predecessors
    shared = shared_tiles(graph)
    arrays = Arrays(
        compute=compute,
        volume=volume,
        latency=latency,
        factor=factor,
        channel=channel,
        succ_ptr=succ_ptr,
        succ=succ,
        pred_ptr=pred_ptr,
        pred=pred,
        order=graph.topological_order,
        group=group,
        param_bytes=shared.own,
        output_bytes=graph.output_bytes,
        tile_ptr=shared.pointers,
        tile=shared.tiles,
        tile_bytes=shared.sizes,
        capacity=np.array([device.memory for device in cluster.devices], np.float64),
        n_channels=cluster.n_channels,
        n_groups=n_groups,
    )
    for array in arrays:
        if isinstance(array, np.ndarray):
            array.setflags(write=False)
    return arrays


def _groups(graph: Graph) -> tuple[IntArray, int]:
    """Give numbers from 0 to the colocation groups of two ops or more."""
    values, inverse, counts = np.unique(graph.colocation, return_inverse=True, return_counts=True)
    real = (values >= 0) & (counts > 1)
    numbers = np.where(real, np.cumsum(real) - 1, -1).astype(np.int32)
    return numbers[inverse].astype(np.int32), int(real.sum())


def _compute(graph: Graph, cluster: Cluster, where: str) -> FloatArray:
    # Each kind of device once: to write a column of a large table takes as long as all of it.
    columns: list[FloatArray] = []
    number: dict[tuple[object, ...], int] = {}
    kind_of = []
    for device in cluster.devices:
        rates = (device.flops, device.memory_bandwidth, device.launch_overhead, device.slowdown)
        measured = tuple(device.measured.items())
        kind = number.setdefault((device.kind, *rates, measured), len(columns))
        if kind == len(columns):
            columns.append(_device_compute(graph, device))
        kind_of.append(kind)
    compute: FloatArray = np.take(np.stack(columns, axis=1), kind_of, axis=1)
    if graph.class_compute_s and not any(
        device.kind in graph.class_compute_s for device in cluster.devices
    ):
        kinds = ", ".join(sorted(graph.class_compute_s))
        raise ProblemError(
            f"{where}: gives costs for device kinds {kinds}, and cluster {cluster.name!r} has none"
        )
    return compute


def _device_compute(graph: Graph, device: Device) -> FloatArray:
    """Seconds of each op on a device; infinite where it cannot run, shape [ops]."""
    if graph.class_compute_s:
        if device.kind not in graph.class_compute_s:
            return np.full(graph.n_ops, np.inf)
        compute: FloatArray = graph.class_compute_s[device.kind] * device.slowdown
    elif graph.compute_s is not None:
        compute = graph.compute_s * device.slowdown
    else:
        # A time beyond all numbers is infinite: the device cannot run the op.
        with np.errstate(over="ignore"):
            moved = (graph.bytes_read + graph.output_bytes) / device.memory_bandwidth
            compute = device.launch_overhead + np.maximum(graph.flops / device.flops, moved)
        if device.measured:
            _measured(compute, graph, device.measured)
    return compute


def _measured(compute: FloatArray, graph: Graph, seconds: Mapping[str, float]) -> None:
    """Put the measured seconds of a device in the place of modeled ones, where there are any."""
    for op, name in enumerate(op_classes(graph)):
        if name in seconds:
            compute[op] = seconds[name]


def _restrict(
    compute: FloatArray, graph: Graph, cluster: Cluster, group: IntArray, where: str
) -> None:
    """Make infinite what pins and colocation rule out."""
    count = cluster.n_devices
    over = np.flatnonzero(graph.pinned >= count)
    if over.size:
        op = int(over[0])
        raise ProblemError(
            f"{where}: op {op} ({graph.names[op]}) is pinned to device {graph.pinned[op]}, and "
            f"cluster {cluster.name!r} has devices 0 to {count - 1}"
        )
    pinned = np.flatnonzero(graph.pinned >= 0)
    others = np.arange(count) != graph.pinned[pinned, None]
    compute[pinned] = np.where(others, np.inf, compute[pinned])
    grouped = np.flatnonzero(group >= 0)
    if grouped.size:
        allowed = np.ones((int(group.max()) + 1, count), bool)
        np.logical_and.at(allowed, group[grouped], np.isfinite(compute[grouped]))
        compute[grouped] = np.where(allowed[group[grouped]], compute[grouped], np.inf)
    stuck = np.flatnonzero(~np.isfinite(compute).any(axis=1))
    if stuck.size:
        op = int(stuck[0])
        reason = (
            f"its colocation group {graph.colocation[op]} has no device that suits all its ops"
            if group[op] >= 0
            else "no device of the cluster can run it"
        )
        raise ProblemError(f"{where}: op {op} ({graph.names[op]}): {reason}")
