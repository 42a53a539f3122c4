"""Capture a model, shard it, place it, and make it ready to run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from doppler import methods
from doppler.capture.capture import Captured, Captures
from doppler.capture.export import ExampleInputs, split_inputs
from doppler.capture.fusion import FUSE
from doppler.checks import check_number, check_type
from doppler.cluster import Cluster
from doppler.engine import Backend, Engine
from doppler.errors import CaptureError, DeviceMemoryError, EngineError, MemoryLimitError
from doppler.messages import shown_value
from doppler.placed.calls import Calls
from doppler.placed.checking import compare_with_eager
from doppler.placed.devices import guessed_cluster, open_backend, usual_devices
from doppler.placed.model import Mode, PlacedModel, state_names
from doppler.placed.state import ModelState
from doppler.placed.trials import Search, Trials, undisturbed_random_numbers
from doppler.problem import Problem

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

    from doppler.policy.frozen import FrozenPolicy
    from doppler.policy.network import DualPolicy

AUTO = "auto"
# Times what one device takes, shared out evenly: so near to the best there is nothing to look for.
_IDEAL = 1.05


def compile(
    model: Module,
    example_inputs: ExampleInputs | Tensor,
    devices: Sequence[str] | None = None,
    *,
    cluster: Cluster | str | Path | None = None,
    shard: Mapping[str, int] | str | None = AUTO,
    training: bool = False,
    loss: Callable[[Any], Tensor] | None = None,
    reduction: str = "mean",
    budget: float = methods.DEFAULT_BUDGET,
    method: str = methods.LEARNED,
    policy: str | Path | FrozenPolicy | DualPolicy = methods.PRETRAINED,
    seed: int = 0,
    threads: int | None = None,
    memory: float = math.inf,
    fusion: float = FUSE,
    check: bool = True,
    name: str = "",
) -> PlacedModel:
    """Place a PyTorch model on several devices.

    The model is captured for the shapes of the example inputs, sharded, fused into ops, placed, and
    run a few times to see what its ops really take; then it is placed once more, by the measured
    times. What is returned is never slower than one device was, as far as these runs tell.

    Parameters
    ----------
    model : torch.nn.Module
        In train or eval mode; it is not changed. For a ``cluster`` alone it may be on the meta
        device.
    example_inputs : tuple, or mapping of str
        Its arguments, or its keyword arguments.
    devices : sequence of str, optional
        ``["cuda:0", "cuda:1"]``, or ``["cpu:0", "cpu:1"]`` for devices that are threads. Default:
        all GPUs, or else the cores; none where a cluster is given.
    cluster : Cluster, str or path, optional
        Where to place it by modeled costs. Without devices the model cannot be called.
    shard : mapping of str to int, None, or "auto"
        As for :func:`doppler.capture.capture.capture`. ``"auto"``: whole, the batch in as many
        parts as there are devices, matrices in as many, the batch in twice as many; the fastest is
        kept, and once one is near the best that there could be, no other is tried.
    training : bool
        Capture a training step: forward, loss and backward. Each call adds the gradients to the
        parameters' ``grad``.
    loss : callable, optional
        Takes the loss, a scalar tensor, from what the model returns.
    reduction : {"mean", "sum"}
        How the loss reduces over the batch, should that be sharded.
    budget : float
        Seconds of search in all.
    method, policy, seed
        As for :func:`doppler.place`.
    threads : int, optional
        Torch threads of each device of the CPU; by default the cores are shared out.
    memory : float
        Bytes that each device of the CPU may hold.
    fusion : float
        As for :func:`doppler.capture.capture.capture`.
    check : bool
        Compare the outputs for the example inputs with those of the model itself, once.
    name : str
        Of the graph; by default that of the model's class.

    Raises
    ------
    CaptureError
        If the model cannot be captured, or computes something else when it is.
    MemoryLimitError
        If it does not fit; says by how much, where, and what helps.
    EngineError
        If the devices are not there.

    Examples
    --------
    >>> placed = compile(model, (torch.zeros(8, 512),), ["cpu:0", "cpu:1"])  # doctest: +SKIP
    >>> placed(torch.ones(8, 512))  # doctest: +SKIP
    """
    check_number(budget, "budget")
    if isinstance(shard, str) and shard != AUTO:
        raise CaptureError(f"shard is {shown_value(shard)}, must be 'auto' or as {{'batch': 4}}")
    args, kwargs = split_inputs(example_inputs)
    backend = None
    if devices is not None or cluster is None:
        given = usual_devices() if devices is None else devices
        backend = open_backend(given, threads=threads, memory=memory)
    if isinstance(cluster, str | Path):
        cluster = Cluster.load(cluster)
    where = check_type(cluster or guessed_cluster(_some(backend)), Cluster, "cluster")
    if backend is not None and where.n_devices != len(backend.device_names):
        raise EngineError(
            f"cluster {where.name!r} has {where.n_devices} devices, and "
            f"{len(backend.device_names)} are given"
        )

    captures = Captures(
        model, example_inputs, training=training, loss=loss, reduction=reduction, name=name
    )
    settings = Search(method, policy, seed)
    choices = [shard] if not isinstance(shard, str) else _choices(where)
    best: PlacedModel | None = None
    refused: Exception | None = None
    left, alone = budget, math.inf
    for number, choice in enumerate(choices):
        share = left / (len(choices) - number)
        try:
            found = captures.graph(choice, fusion)
            if best is not None and _same(found, best.captured):
                continue
            placed = _place(model, found, where, backend, settings, share, (args, kwargs))
            left -= share
            if check and backend is not None:
                with undisturbed_random_numbers():
                    compare_with_eager(placed, model, args, kwargs, loss, training)
        except (CaptureError, MemoryLimitError, DeviceMemoryError) as error:
            # The first is the whole model: what is wrong with it is wrong with every shard.
            if len(choices) == 1 or (isinstance(error, CaptureError) and choice is choices[0]):
                raise
            refused = refused or error
            continue
        if best is None or placed.measured["placed"] < best.measured["placed"]:
            if best is not None:
                best.close()
            best = placed
        else:
            placed.close()
        if choice is choices[0]:
            alone = placed.measured.get("one device", float(placed.problem.least_compute.sum()))
        if best.measured["placed"] <= _IDEAL * alone / where.n_devices:
            break
    if best is None:
        assert refused is not None
        raise refused
    return best


def _choices(cluster: Cluster) -> list[Mapping[str, int] | None]:
    """Ways to shard that are tried: the whole first."""
    count = cluster.n_devices
    if count == 1:
        return [None]
    return [None, {"batch": count}, {"tensor": count}, {"batch": 2 * count}]


def _same(one: Captured, other: Captured) -> bool:
    return one.graph.names == other.graph.names


def _some(backend: Backend | None) -> Backend:
    assert backend is not None
    return backend


def _place(
    model: Module,
    captured: Captured,
    cluster: Cluster,
    backend: Backend | None,
    search: Search,
    budget: float,
    example: tuple[tuple[Any, ...], dict[str, Any]],
) -> PlacedModel:
    """Place a captured model; where there are devices, by what runs on them take."""
    graph = captured.graph
    mode = Mode.now(model)
    if backend is None:
        problem = Problem(graph, cluster)
        placement = search.place(problem, budget)
        measured = {"placed": float(placement.info["expected_makespan_s"])}
        return PlacedModel(model, captured, cluster, placement, None, mode=mode, measured=measured)
    inputs = Calls(captured.signature, graph).bind(*example)
    state = ModelState(model, state_names(graph))
    tensors = {**captured.constants, **state.changed(), **inputs}
    engine = Engine(graph, backend, tensors=tensors, share=True)
    try:
        with undisturbed_random_numbers():
            found = Trials(engine, cluster, search).run(budget)
    except BaseException:
        engine.close()
        raise
    return PlacedModel(
        model,
        captured,
        found.cluster,
        found.chosen,
        backend,
        mode=mode,
        example=inputs,
        engine=engine,
        measured=found.seconds,
    )
