"""What the policies see of an op, before the episode and when it is placed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from doppler.errors import UnknownNameError
from doppler.problem import Problem
from doppler.schedule.compiled import lean
from doppler.schedule.partial import earliest_starts

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int32]

NODE_FEATURES = (
    "compute",
    "transfer",
    "input_transfer",
    "b_level",
    "t_level",
    "critical",
    "b_level_with_transfers",
    "critical_with_transfers",
    "inputs",
    "consumers",
    "entry",
    "exit",
    "fastest_device",
    "slowest_device",
    "graph_transfer_to_compute",
    "graph_parallelism",
    "graph_parallelism_per_device",
)

DEVICE_FEATURES = (
    "load",
    "load_above_least",
    "input_compute",
    "inputs_earliest_start",
    "inputs_latest_end",
    "start",
    "start_above_least",
    "end_above_least",
    "cost",
    "cost_above_least",
    "affinity",
    "affinity_above_least",
    "transfers",
    "transfers_above_least",
    "holds_input",
    "busy",
    "shared_affinity_above_least",
    "shared_transfers_above_least",
    "on_hint",
    "on_hint_node",
    "on_hint_above_bound",
    "consumers_hinted",
)
PAPER_FEATURES = (
    "load",
    "input_compute",
    "inputs_earliest_start",
    "inputs_latest_end",
    "start",
)

# How much an episode may vary the direct weight of a feature: standard deviation of the logarithm
# of a factor that is drawn once for the episode.
STYLE_SPREAD = {
    "end_above_least": 0.4,
    "affinity_above_least": 0.5,
    "transfers_above_least": 0.5,
    "shared_affinity_above_least": 0.5,
    "shared_transfers_above_least": 0.5,
    "on_hint": 1.0,
    "on_hint_node": 0.7,
    "consumers_hinted": 0.7,
}
STYLED = np.array([STYLE_SPREAD.get(name, 0.0) for name in DEVICE_FEATURES])

# Of a problem as a whole: means and deviations of the node features, and the cluster's shape.
CLUSTER_FEATURES = ("devices", "nodes", "far_to_near", "sharers")
SUMMARY_SIZE = 2 * len(NODE_FEATURES) + len(CLUSTER_FEATURES)


@dataclass(frozen=True, slots=True)
class FeatureSet:
    """Which device features the placement policy reads.

    Attributes
    ----------
    name : str
        ``"full"``, or ``"paper"``: the five of Yao et al. (ICLR 2026) alone, for the ablation.
    used : tuple of bool
        One for each of ``DEVICE_FEATURES``.
    """

    name: str
    used: tuple[bool, ...]

    @classmethod
    def named(cls, name: str) -> FeatureSet:
        """Return a feature set by name.

        Raises
        ------
        UnknownNameError
            If there is none of that name.
        """
        sets = {"full": DEVICE_FEATURES, "paper": PAPER_FEATURES}
        if name not in sets:
            raise UnknownNameError("feature set", name, sets)
        return cls(name, tuple(feature in sets[name] for feature in DEVICE_FEATURES))


class Scales(NamedTuple):
    """Per-problem constants that the device features are measured against.

    Attributes
    ----------
    mean_compute : float64 array, shape [ops]
    unit : float64 array, shape [ops]
        Seconds that count as one for an op: its compute, its transfer and its largest input's.
    share : float
        Total mean compute over the number of devices, seconds.
    sharers : float64 array, shape [devices, devices]
        How many other devices send over the channel from one device to another.
    """

    mean_compute: FloatArray
    unit: FloatArray
    share: float
    sharers: FloatArray


def scales(problem: Problem) -> Scales:
    """Compute the constants of a problem. O(V + E)."""
    arrays = problem.arrays
    compute, moved = problem.mean_compute, problem.mean_transfer
    largest = np.zeros(problem.n_ops)
    np.maximum.at(largest, problem.graph.dst, moved[problem.graph.src])
    typical = float(compute.mean() + moved.mean())
    unit = compute + moved + largest + 0.01 * (typical if typical > 0 else 1.0)
    total = float(compute.sum())
    share = (total if total > 0 else 1.0) / arrays.compute.shape[1]
    return Scales(compute, unit, share, _sharers(arrays.channel))


def _sharers(channel: IntArray) -> FloatArray:
    sources = [np.unique(np.nonzero(channel == c)[0]).size for c in range(int(channel.max()) + 1)]
    # The last entry is that of channel -1, on which nothing waits.
    return np.array([*sources, 1.0])[channel] - 1.0


def node_features(problem: Problem) -> npt.NDArray[np.float32]:
    """Features of every op, known before the episode.

    Free of units: times are relative to their mean or to the longest path, so that a network
    trained on one scale of costs serves another. The last three are the same for all ops of a
    problem.

    Returns
    -------
    float32 array, shape [ops, len(NODE_FEATURES)]
    """
    arrays, graph = problem.arrays, problem.graph
    compute, moved = problem.mean_compute, problem.mean_transfer
    mean = float(compute.mean()) or float(moved.mean()) or 1.0
    received = np.bincount(graph.dst, moved[graph.src], minlength=problem.n_ops)
    below = problem.b_level(compute)
    above = problem.t_level(compute)
    below_moved = problem.b_level(compute, transfers=True)
    above_moved = problem.t_level(compute, transfers=True)
    longest = float(below.max()) or 1.0
    longest_moved = float(below_moved.max()) or 1.0
    n_inputs = np.diff(arrays.pred_ptr)
    n_consumers = np.diff(arrays.succ_ptr)
    slowest = problem.most_compute
    base = np.maximum(compute, 1e-300)
    total, total_moved = float(compute.sum()), float(moved.sum())
    transfer_to_compute = total_moved / max(total, 1e-5 * total_moved, 1e-300)
    parallelism = total / longest
    columns = (
        np.log1p(compute / mean),
        np.log1p(moved / mean),
        np.log1p(received / mean),
        below / longest,
        above / longest,
        (below + above) / longest,
        below_moved / longest_moved,
        (below_moved + above_moved) / longest_moved,
        np.log1p(n_inputs),
        np.log1p(n_consumers),
        n_inputs == 0,
        n_consumers == 0,
        np.minimum(problem.least_compute / base, 1.0),
        np.log1p(slowest / base),
        np.full(problem.n_ops, np.log1p(transfer_to_compute).clip(max=10.0)),
        np.full(problem.n_ops, np.log1p(parallelism)),
        np.full(problem.n_ops, np.log1p(parallelism / problem.n_devices)),
    )
    return np.stack([np.asarray(column, np.float32) for column in columns], axis=1)


def problem_summary(problem: Problem, features: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Describe a problem as a whole, by the node features of its ops.

    Returns
    -------
    float32 array, shape [SUMMARY_SIZE]
    """
    nodes, factor = problem.nodes, problem.arrays.factor
    apart = nodes[:, None] != nodes[None, :]
    near = ~apart & ~np.eye(problem.n_devices, dtype=bool)
    far_to_near = 0.0
    if apart.any() and near.any() and factor[near].mean() > 0.0:
        far_to_near = np.log(max(factor[apart].mean() / factor[near].mean(), 1e-3))
    cluster = (
        np.log(problem.n_devices),
        np.log(nodes.max() + 1),
        far_to_near,
        np.log1p(max(_sharers(problem.arrays.channel).mean(), 0.0)),
    )
    parts = (features.mean(axis=0), features.std(axis=0), np.array(cluster))
    return np.concatenate(parts).astype(np.float32)


@lean
def _squash(value):  # type: ignore[no-untyped-def]
    """Keep small values as they are and large ones in reach: sign(x) log(1 + |x|)."""
    return np.log(1.0 + value) if value >= 0.0 else -np.log(1.0 - value)


@lean
def device_features(  # type: ignore[no-untyped-def]
    arrays, scale, hint, partial, load, horizon, found, n_found, n_inputs, op, scratch, features
):
    """Describe what placing an op on each candidate device would mean.

    O(devices x inputs + the cost of sibling affinity).

    Parameters
    ----------
    scale : Scales
    hint : Hint
    partial : Partial
        The schedule so far, the op's inputs gathered.
    load : float64 array, shape [devices]
        Sum of the op times placed on each device.
    horizon : float
        When the last device is free, seconds.
    found : int32 array, shape [devices]
        The first ``n_found`` are the candidates.
    scratch : float64 array, shape [6, devices]
        The first two rows are what :func:`sibling_volumes` fills.
    features : float64 array, shape [devices, len(DEVICE_FEATURES)]
        Filled for the candidates.
    """
    compute, device_free = arrays.compute, partial.device_free
    placed, finish, inputs = partial.devices, partial.finish, partial.inputs
    n_copies, copy_device = partial.n_copies, partial.copy_device
    succ_ptr, succ = arrays.succ_ptr, arrays.succ
    latency, factor, volume = arrays.latency, arrays.factor, arrays.volume
    mean_compute = scale.mean_compute
    volume_on, count_on, sharers = scratch[0], scratch[1], scale.sharers
    sources, starts = scratch[2], scratch[3]
    n_sources = 0
    for device in range(len(load)):
        if count_on[device] > 0.0:
            sources[n_sources] = device
            n_sources += 1
    earliest_starts(arrays, partial, n_inputs, starts, scratch[5])
    hinted, node_of, above_bound = hint.devices, hint.nodes, hint.above_bound
    consumers_on = scratch[4]
    preferred = -1
    if len(hinted) > 0:
        preferred = hinted[op]
        consumers_on[:] = 0.0
        first_edge, last_edge = succ_ptr[op], succ_ptr[op + 1]
        for edge in range(first_edge, last_edge):
            consumers_on[hinted[succ[edge]]] += 1.0 / (last_edge - first_edge)
    unit = 1.0 / scale.unit[op]
    per_share = 1.0 / scale.share
    least_load = np.inf
    least_start = np.inf
    least_end = np.inf
    least_cost = np.inf
    least_affinity = np.inf
    least_sent = np.inf
    least_shared_affinity = np.inf
    least_shared_sent = np.inf
    input_total = 0.0
    for index in range(n_inputs):
        input_total += mean_compute[inputs[index]]
    for candidate in range(n_found):
        device = found[candidate]
        start = starts[device]
        cost = compute[op, device]
        sent = 0.0
        shared_sent = 0.0
        affinity = 0.0
        shared_affinity = 0.0
        held = 0.0
        n_held = 0
        first = np.inf
        last = 0.0
        for index in range(n_inputs):
            producer = inputs[index]
            if placed[producer] == device:
                n_held += 1
                held += mean_compute[producer]
                ended = finish[producer]
                first = min(first, ended - compute[producer, device])
                last = max(last, ended)
            else:
                slot = succ_ptr[producer]
                end = slot + n_copies[producer]
                while slot < end and copy_device[slot] != device:
                    slot += 1
                if slot == end:
                    source = placed[producer]
                    duration = latency[source, device] + volume[producer] * factor[source, device]
                    sent += duration
                    shared_sent += duration * sharers[source, device]
        for index in range(n_sources):
            source = np.int64(sources[index])
            if source != device:
                forced = (
                    count_on[source] * latency[source, device]
                    + volume_on[source] * factor[source, device]
                )
                affinity += forced
                shared_affinity += sharers[source, device] * forced
        features[device, 0] = load[device] * per_share
        features[device, 2] = held / input_total if input_total > 0.0 else 0.0
        features[device, 3] = _squash((horizon - first) * unit) if n_held > 0 else 0.0
        features[device, 4] = _squash((horizon - last) * unit) if n_held > 0 else 0.0
        features[device, 5] = _squash((start - horizon) * unit)
        features[device, 8] = _squash(cost * unit)
        features[device, 10] = _squash(affinity * unit)
        features[device, 12] = _squash(sent * unit)
        features[device, 14] = 1.0 if n_held > 0 else 0.0
        features[device, 15] = _squash((horizon - device_free[device]) * unit)
        on_node = preferred >= 0 and node_of[device] == node_of[preferred]
        features[device, 18] = 1.0 if device == preferred else 0.0
        features[device, 19] = 1.0 if on_node else 0.0
        features[device, 20] = above_bound if device == preferred else 0.0
        features[device, 21] = consumers_on[device] if preferred >= 0 else 0.0
        least_load = min(least_load, load[device])
        least_start = min(least_start, start)
        least_end = min(least_end, start + cost)
        least_cost = min(least_cost, cost)
        least_affinity = min(least_affinity, affinity)
        least_sent = min(least_sent, sent)
        least_shared_affinity = min(least_shared_affinity, shared_affinity)
        least_shared_sent = min(least_shared_sent, shared_sent)
        # Kept in seconds until the least over all devices is known.
        features[device, 1] = load[device]
        features[device, 6] = start
        features[device, 7] = start + cost
        features[device, 9] = cost
        features[device, 11] = affinity
        features[device, 13] = sent
        features[device, 16] = shared_affinity
        features[device, 17] = shared_sent
    for candidate in range(n_found):
        device = found[candidate]
        features[device, 1] = _squash((features[device, 1] - least_load) * unit)
        features[device, 6] = _squash((features[device, 6] - least_start) * unit)
        features[device, 7] = _squash((features[device, 7] - least_end) * unit)
        features[device, 9] = _squash((features[device, 9] - least_cost) * unit)
        features[device, 11] = _squash((features[device, 11] - least_affinity) * unit)
        features[device, 13] = _squash((features[device, 13] - least_sent) * unit)
        features[device, 16] = _squash((features[device, 16] - least_shared_affinity) * unit)
        features[device, 17] = _squash((features[device, 17] - least_shared_sent) * unit)
