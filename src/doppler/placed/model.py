"""A model that runs on several devices, called as the model itself is called."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import TYPE_CHECKING, Any

from doppler.capture.capture import Captured
from doppler.capture.operators import is_view
from doppler.checks import check_seed, check_whole
from doppler.cluster import Cluster
from doppler.engine import Backend, Engine, Execution
from doppler.errors import CaptureError, EngineError
from doppler.graph import Graph, Tile
from doppler.placed.calls import Calls
from doppler.placed.devices import physical_devices
from doppler.placed.state import ModelState, ModuleTree
from doppler.placement import Placement
from doppler.problem import Problem

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module


# Runs by which a placement is timed.
_RUNS = 9


@dataclass(frozen=True, slots=True)
class Mode:
    """What a capture depends on beside the inputs.

    Attributes
    ----------
    training : bool
        Whether the model was in train mode.
    exceptions : tuple of str
        Paths of modules that were not in that mode.
    autocast : tuple of (str, str)
        Kinds of devices for which autocast was on, and its dtype.
    """

    training: bool
    exceptions: tuple[str, ...]
    autocast: tuple[tuple[str, str], ...]

    @classmethod
    def now(cls, model: Module) -> Mode:
        """Look at the model and the thread."""
        return cls(model.training, ModuleTree(model).exceptions, autocast_now())


def autocast_now() -> tuple[tuple[str, str], ...]:
    """Kinds of devices for which this thread has autocast on, and its dtype."""
    import torch

    return tuple(
        (kind, str(torch.get_autocast_dtype(kind)).removeprefix("torch."))
        for kind in ("cpu", "cuda")
        if torch.is_autocast_enabled(kind)
    )


@dataclass(frozen=True, slots=True)
class Refinement:
    """What refining has brought.

    Attributes
    ----------
    runs : int
    before, after : float
        Median seconds of a call with the placement before and after, of the runs of each.
    changed : bool
        Whether another placement was found to be faster.
    """

    runs: int
    before: float
    after: float
    changed: bool


class PlacedModel:
    """A captured model and its placement; call it as the model.

    Made by :func:`doppler.compile`. Parameters stay on the devices between calls; where the model
    changes them (an optimizer's step, ``load_state_dict``) the next call sees it, unless it writes
    to ``parameter.data``. Calls of several threads take turns. Close it, or use it as a context
    manager, to give the devices' memory back.

    Attributes
    ----------
    graph : Graph
    cluster : Cluster
        The devices, with the times that were measured.
    placement : Placement
    measured : dict of str to float
        Median seconds of a call as compiling saw them, by name: ``"one device"``, ``"placed"``.
    """

    def __init__(
        self,
        model: Module,
        captured: Captured,
        cluster: Cluster,
        placement: Placement,
        backend: Backend | None,
        *,
        mode: Mode,
        example: Mapping[str, Tensor] | None = None,
        engine: Engine | None = None,
        measured: Mapping[str, float] | None = None,
    ) -> None:
        self.captured = captured
        self.graph: Graph = captured.graph
        self.cluster = cluster
        self.placement = placement
        self.measured = dict(measured or {})
        self.mode = mode
        self._model = model
        self._backend = backend
        self._calls = Calls(captured.signature, captured.graph)
        self._example = dict(example or {})
        self._lock = threading.Lock()
        self._last: Execution | None = None
        self._engine = engine
        self._state = ModelState(model, state_names(captured.graph))
        self._modules = ModuleTree(model)
        self._pieces = pieces_of(self.graph)
        self._handed_on = handed_on(self.graph)
        self._trained = [
            name.removeprefix("grad:") for name in self._pieces if name.startswith("grad:")
        ]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model.

        Returns
        -------
        object
            What the model returns, of the same structure; tensors are on the first device. They
            need no gradients. A training step has added the gradients to the parameters' ``grad``.

        Raises
        ------
        CaptureError
            If the arguments, or what the capture depends on, differ from when it was captured.
        EngineError
            If the run fails.
        """
        inputs = self._bind(args, kwargs)
        with self._lock:
            outputs = self._compute(inputs)
            self._write_back(outputs, inputs)
        return self._calls.results(outputs.__getitem__)

    def outputs_of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Tensor]:
        """Run the model and return all that it computes by name, writing nothing back.

        Returns
        -------
        dict of str to Tensor
            ``"output0"``, ..., ``"buffer:NAME"``, ``"grad:NAME"``.

        Raises
        ------
        CaptureError, EngineError
            As a call.
        """
        inputs = self._bind(args, kwargs)
        with self._lock:
            return self._compute(inputs)

    def parameter(self, name: str) -> Tensor:
        """Return a parameter or buffer of the model."""
        return self._state.tensor(name)

    @property
    def tied(self) -> dict[str, str]:
        """Further names of the tensors of the graph in the model, each with the first."""
        return dict(self._state.tied)

    @property
    def problem(self) -> Problem:
        """The graph on the cluster."""
        return Problem(self.graph, self.cluster)

    @property
    def last_execution(self) -> Execution | None:
        """The last run, None where there was none."""
        return self._last

    @property
    def execution(self) -> Execution:
        """The last run: its makespan, trace, and the most memory that each device held.

        Raises
        ------
        EngineError
            If there was none.
        """
        if self._last is None:
            raise EngineError(f"{self.graph.name}: has not run yet; call it first")
        return self._last

    @property
    def makespan(self) -> float:
        """Seconds that a call is expected to take: as simulated, from measured times if any."""
        from doppler.simulator import simulate

        return simulate(self.problem, self.placement).makespan

    def device_map(self) -> dict[str, str] | None:
        """Return a ``device_map`` as accelerate takes it, where whole modules lie on one device.

        Returns
        -------
        dict of str to str, or None
            Device by path of the module. None where a module is split over devices.
        """
        from doppler.placed.device_map import device_map

        return device_map(self.graph, self.placement, self._device_names(), self._model)

    def report(self, path: str | Path) -> Path:
        """Write a page that shows the timeline, memory, transfers, and the times beside one device.

        Raises
        ------
        DopplerError
            If the file cannot be written.
        """
        from doppler.placed.report import write_report

        return write_report(self, path)

    def save(self, directory: str | Path) -> Path:
        """Keep the graph, the cluster and the placement; :func:`doppler.load_placed` reads them.

        Weights stay with the model.
        """
        from doppler.placed.saving import save_placed

        return save_placed(self, directory)

    def refine(
        self, runs: int = 200, *, directory: str | Path | None = None, seed: int = 0
    ) -> Refinement:
        """Go on improving the placement from runs on the devices, with the example inputs.

        Most runs use the placement in use; others try candidates, as far as a guard allows. It is
        replaced where a paired test shows that another one is faster.

        Parameters
        ----------
        runs : int
        directory : path-like, optional
            Where what was learned is kept, for the next time that the model is placed in the same
            shards.
        seed : int

        Raises
        ------
        DopplerError
            If the model has no devices, or no example inputs to run with.
        """
        from doppler.placed.refinement_start import refinement_start
        from doppler.refinement.candidates import same_placement
        from doppler.refinement.refiner import Refiner

        check_whole(runs, "runs", 1)
        check_seed(seed)
        self._runnable()
        if not self._example and any(t.role == "input" for t in self.graph.tensors.values()):
            raise EngineError(
                f"{self.graph.name}: refining runs with the example inputs, and there are none; "
                "call it once first"
            )
        before = self.placement
        seconds: dict[bool, list[float]] = {True: [], False: []}
        problem, start = refinement_start(directory, self.graph, self.cluster, before)
        with Refiner(problem, start, directory=directory, seed=seed, background=False) as refiner:
            for _ in range(runs):
                placement = refiner.next()
                with self._lock:
                    self._runnable()
                    try:
                        execution = self._run(self._example, placement)
                    except EngineError as error:
                        refiner.failed(str(error))
                        continue
                refiner.observe(execution.makespan, trace=execution.trace)
                seconds[same_placement(placement, before)].append(execution.makespan)
            champion = refiner.champion
            self.cluster = refiner.problem.cluster
        self.placement = champion
        changed = not same_placement(champion, before)
        first = median(seconds[True]) if seconds[True] else self._median(before)
        after = self._median(champion) if changed else first
        return Refinement(runs, first, after, changed)

    def close(self) -> None:
        """Give the memory on the devices back; it cannot be called any more."""
        with self._lock:
            if self._engine is not None:
                self._engine.close()
                self._engine = None
            self._backend = None

    def __enter__(self) -> PlacedModel:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise CaptureError(
            f"{self.graph.name}: a placed model holds devices and cannot be copied or pickled; "
            "save() it and read it by doppler.load_placed, or compile the copy of the model"
        )

    def __repr__(self) -> str:
        devices = ", ".join(device.name for device in self.cluster.devices)
        return f"PlacedModel({self.graph.name!r}, ops={self.graph.n_ops}, devices=[{devices}])"

    def _bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Tensor]:
        self._runnable()
        self._check_mode()
        return self._calls.bind(args, kwargs)

    def _compute(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        backend = self._runnable()
        self._last = self._run(inputs)
        # What a refinement runs with, should nothing else have been given.
        self._example = self._example or dict(inputs)
        device = physical_devices(backend)[0]
        outputs = self._last.outputs
        made = {
            name: join([(outputs[op], tile) for op, tile in pieces], device)
            for name, pieces in self._pieces.items()
        }
        return made | {name: made[name].clone() for name in self._handed_on}

    def _runnable(self) -> Backend:
        if self._backend is None:
            raise EngineError(
                f"{self.graph.name}: is placed on {self.cluster.name!r}, not on devices of this "
                "machine, or closed; compile it with devices=['cuda:0', ...] to run it"
            )
        return self._backend

    def _device_names(self) -> list[str]:
        if self._backend is None:
            return [device.name for device in self.cluster.devices]
        return [
            str(device) if device.type == "cuda" else "cpu"
            for device in physical_devices(self._backend)
        ]

    def _check_mode(self) -> None:
        self._modules.check()
        autocast = autocast_now()
        if autocast != self.mode.autocast:
            raise CaptureError(
                f"{self.graph.name}: was captured with autocast {_shown(self.mode.autocast)}, and "
                f"it is {_shown(autocast)} now; call it as it was captured, or compile it again"
            )
        for name in self._trained:
            if not self._state.tensor(name).requires_grad:
                raise CaptureError(
                    f"{self.graph.name}: parameter {name!r} was trained when the model was "
                    "captured, and requires no gradient now; compile it again"
                )

    def _run(self, inputs: Mapping[str, Tensor], placement: Placement | None = None) -> Execution:
        if self._engine is None:
            tensors = {**self.captured.constants, **self._state.changed(), **inputs}
            self._engine = Engine(self.graph, self._runnable(), tensors=tensors, share=True)
            changed: dict[str, Tensor] = {}
        else:
            read, state = self.graph.tensors, self._state.changed()
            # A buffer may be written to and never read.
            changed = {name: tensor for name, tensor in state.items() if name in read}
            changed |= inputs
        try:
            return self._engine.run(placement or self.placement, tensors=changed)
        except BaseException:
            # Which of the tensors have arrived is open.
            self._state.forget()
            raise

    def _median(self, placement: Placement) -> float:
        with self._lock:
            return median(self._run(self._example, placement).makespan for _ in range(_RUNS))

    def _write_back(self, outputs: Mapping[str, Tensor], inputs: Mapping[str, Tensor]) -> None:
        """Hand on what the model writes beside its results: buffers, inputs, gradients."""
        import torch

        # What is made in inference mode could not be written to outside of it.
        with torch.inference_mode(False), torch.no_grad():
            for name, value in outputs.items():
                kind, _, target = name.partition(":")
                if kind == "buffer":
                    self._state.tensor(target).copy_(value)
                elif kind == "input":
                    self._write_input(target, inputs[target], value)
                elif kind == "grad":
                    parameter = self._state.tensor(target)
                    gradient = value.to(parameter.device)
                    if parameter.grad is None:
                        # A copy: what a run returns may be shared by several names.
                        parameter.grad = gradient.clone()
                    else:
                        parameter.grad.add_(gradient)

    def _write_input(self, name: str, tensor: Tensor, value: Tensor) -> None:
        try:
            tensor.copy_(value)
        except RuntimeError as error:
            raise EngineError(
                f"{self.graph.name}: the model writes to its input {name!r}, and this one cannot "
                f"be written to ({str(error).splitlines()[0]}); give a copy: {name}.clone()"
            ) from error


def state_names(graph: Graph) -> list[str]:
    """Names of the parameters and buffers that a graph reads, or writes to after a run."""
    read = [
        name for name, tensor in graph.tensors.items() if tensor.role in ("parameter", "buffer")
    ]
    written = [
        tile.tensor.partition(":")[2]
        for tile in graph.outputs.values()
        if tile.tensor.startswith(("buffer:", "grad:"))
    ]
    return list(dict.fromkeys(read + written))


def join(pieces: list[tuple[Tensor, Tile]], device: Any) -> Tensor:
    """Put a tensor together from its tiles, on a device.

    Parameters
    ----------
    pieces : list of (Tensor, Tile)
        At least one; the tiles make up the whole.
    device : torch.device
    """
    first, _ = pieces[0]
    if len(pieces) == 1:
        return first.to(device)
    shape = [max(tile.slices[axis][1] for _, tile in pieces) for axis in range(first.ndim)]
    whole = first.new_empty(shape, device=device)
    for block, tile in pieces:
        whole[tuple(slice(low, high) for low, high in tile.slices)].copy_(block)
    return whole


def pieces_of(graph: Graph) -> dict[str, list[tuple[int, Tile]]]:
    """List by name which ops hold the tiles of every output."""
    pieces: dict[str, list[tuple[int, Tile]]] = {}
    for op, tile in graph.outputs.items():
        pieces.setdefault(tile.tensor, []).append((op, tile))
    return pieces


def handed_on(graph: Graph) -> list[str]:
    """List the outputs that may share memory with inputs, parameters or other outputs.

    Their ops compute nothing: copies that a model makes are left out where nothing is written.
    """
    specs = graph.specs or ()
    return [
        tile.tensor
        for op, tile in graph.outputs.items()
        if all(is_view(call["op"]) for call in specs[op].attributes["calls"])
    ]


def _shown(autocast: tuple[tuple[str, str], ...]) -> str:
    return ", ".join(f"{kind} {dtype}" for kind, dtype in autocast) or "off"
