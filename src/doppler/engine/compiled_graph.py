"""Executable graphs on devices: compiled ops, and the tiles of inputs and parameters they read."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from doppler.engine.plan import ExecutionPlan
from doppler.errors import DeviceMemoryError, EngineError, UnknownNameError
from doppler.graph import Graph
from doppler.graph.calls import ATEN
from doppler.graph.execution import check_executable, compile_op, make_tensors, read_tile
from doppler.graph.spec import OpSpec, Tile
from doppler.installed_memory import installed_memory
from doppler.messages import shown

if TYPE_CHECKING:
    from torch import Tensor

Function = Callable[[Sequence[Any]], Any]


class CompiledGraph:
    """The ops of a graph, compiled, and the whole tensors that they read tiles of.

    Parameters
    ----------
    graph : Graph
    tensors : mapping of str to Tensor, optional
        Whole tensors; made from ``seed`` if left out.
    seed : int
    devices : sequence of str
        Name of torch's device for each device of the backend.
    most_bytes : float
        What no tensor may exceed, if that is more than the memory of the machine.

    Attributes
    ----------
    functions : list, length devices, of list of callable, length ops
    sources : list of tuple of int, length ops
        What each op reads: the id of an op, or -1 - index of a tile.
    tiles : list of Tile
    sizes : list of float, length ops
        Bytes of each output.

    Raises
    ------
    EngineError
        If the graph has no executable ops, or a tensor is missing or has another shape or dtype.
    GraphError
        If an op cannot run, or would not give what its spec says.
    """

    def __init__(
        self,
        graph: Graph,
        tensors: Mapping[str, Tensor] | None,
        seed: int,
        devices: Sequence[str] = ("cpu",),
        most_bytes: float = 0.0,
    ) -> None:
        where = graph.source or graph.name
        if graph.specs is None:
            raise EngineError(
                f"{where}: the graph has no executable ops: it says what they cost, not what they "
                "compute; use the emulated backend, or a workload that can run, as "
                "workload:llama_layer"
            )
        self.graph = graph
        self.tensors = dict(make_tensors(graph, seed) if tensors is None else tensors)
        for name in graph.tensors:
            if name not in self.tensors:
                raise EngineError(f"{where}: tensor {shown(name)!r} is not among the tensors given")
            self._check(name, self.tensors[name])
        check_executable(graph, self.tensors, max(installed_memory(), most_bytes))
        self.functions = _compile(graph.specs, devices)
        self.sources: list[tuple[int, ...]] = []
        numbers: dict[Tile, int] = {}
        for op_spec in graph.specs:
            self.sources.append(
                tuple(
                    -1 - numbers.setdefault(source, len(numbers))
                    if isinstance(source, Tile)
                    else source
                    for source in op_spec.inputs
                )
            )
        width = max(
            (each.element_size() for each in self.tensors.values() if each.is_floating_point()),
            default=4,
        )
        self.sizes = [
            size if spec.function == ATEN else float(math.prod(spec.shape) * width)
            for spec, size in zip(graph.specs, graph.output_bytes.tolist(), strict=True)
        ]
        self.tiles = list(numbers)

    def replace(self, tensors: Mapping[str, Tensor]) -> None:
        """Take other whole tensors in the place of those of the same names; all or none.

        Raises
        ------
        EngineError
            If one is not known, or of another shape or dtype.
        """
        for name, tensor in tensors.items():
            if name not in self.graph.tensors:
                raise UnknownNameError(
                    f"tensor of {self.graph.source or self.graph.name}", name, self.graph.tensors
                )
            self._check(name, tensor)
            usual = self.tensors[name].dtype
            if tensor.dtype != usual:
                raise self._wrong(name, f"has dtype {tensor.dtype}, and had {usual} before")
        self.tensors.update(tensors)

    def _check(self, name: str, tensor: object) -> None:
        """Hold a whole tensor against what the graph says of it."""
        import torch
        from torch import Tensor

        spec = self.graph.tensors[name]
        if not isinstance(tensor, Tensor):
            raise self._wrong(name, f"is a {type(tensor).__name__}, must be a torch tensor")
        shape = tuple(tensor.shape)
        if shape != tuple(spec.shape):
            raise self._wrong(name, f"has shape {shape}, the graph says {tuple(spec.shape)}")
        dtype = str(tensor.dtype).removeprefix("torch.")
        if spec.dtype is not None and dtype != spec.dtype:
            raise self._wrong(name, f"has dtype {dtype}, the graph says {spec.dtype}")
        if tensor.layout != torch.strided or tensor.device.type == "meta":
            raise self._wrong(name, "is sparse or has no values, must be a dense tensor")

    def _wrong(self, name: str, what: str) -> EngineError:
        where = self.graph.source or self.graph.name
        return EngineError(f"{where}: tensor {shown(name)!r} {what}")


def _compile(specs: Sequence[OpSpec], devices: Sequence[str]) -> list[list[Function]]:
    """Compile ops for each device, but once for devices and ops that are alike."""
    on: dict[str, list[Function]] = {}
    for device in dict.fromkeys(devices):
        # Ops made from one form share the mapping itself.
        known: dict[tuple[int, str, int, tuple[int, ...]], Function] = {}
        on[device] = []
        for spec in specs:
            key = (id(spec.attributes), spec.function, len(spec.inputs), tuple(spec.shape))
            if key not in known:
                known[key] = compile_op(spec, device)
            on[device].append(known[key])
    return [on[device] for device in devices]


class TileCache:
    """Tiles on devices, kept between runs.

    Parameters
    ----------
    compiled : CompiledGraph
    device_names : tuple of str
    memory : tuple of float
        Bytes of each device.
    place : callable
        Brings a tensor to a device.
    """

    def __init__(
        self,
        compiled: CompiledGraph,
        device_names: tuple[str, ...],
        memory: tuple[float, ...],
        place: Callable[[Tensor, int], Tensor],
    ) -> None:
        self._compiled = compiled
        self._names = device_names
        self._memory = memory
        self._place = place
        self._placed: list[dict[int, Tensor]] = [{} for _ in device_names]
        self._sizes = {
            -1 - index: tile_bytes(tile, compiled.tensors[tile.tensor])
            for index, tile in enumerate(compiled.tiles)
        }
        self._keys: dict[str, list[int]] = {}
        for index, tile in enumerate(compiled.tiles):
            self._keys.setdefault(tile.tensor, []).append(-1 - index)
        self._needs: tuple[ExecutionPlan | None, list[dict[int, int]], list[float]] = None, [], []

    def arrange(self, plan: ExecutionPlan) -> tuple[list[dict[int, Tensor]], list[float]]:
        """Bring to every device what its ops read.

        Returns
        -------
        held : list of dict, length devices
            Tiles of the plan by their key in ``CompiledGraph.sources``.
        resident : list of float, length devices
            Their bytes.

        Raises
        ------
        DeviceMemoryError
            If they do not fit; nothing that other plans left there counts.
        """
        known, readers, resident = self._needs
        if known is not plan:
            readers = [{} for _ in self._names]
            for op, (device, sources) in enumerate(
                zip(plan.devices, self._compiled.sources, strict=True)
            ):
                for source in sources:
                    if source < 0:
                        readers[device].setdefault(source, op)
            resident = [float(sum(map(self._sizes.__getitem__, keys))) for keys in readers]
            self._needs = plan, readers, resident
        held = [self._arrange(device, needed) for device, needed in enumerate(readers)]
        return held, list(resident)

    def forget(self, names: Iterable[str]) -> None:
        """Forget the tiles of some tensors."""
        for name in names:
            for key in self._keys.get(name, ()):
                for placed in self._placed:
                    placed.pop(key, None)

    def clear(self) -> None:
        """Forget all tiles."""
        self._placed = [{} for _ in self._names]

    def _arrange(self, device: int, readers: dict[int, int]) -> dict[int, Tensor]:
        placed, compiled = self._placed[device], self._compiled
        new = [key for key in readers if key not in placed]
        if new:
            sizes, limit = self._sizes, self._memory[device]
            if sum(map(sizes.__getitem__, placed)) + sum(map(sizes.__getitem__, new)) > limit:
                self._keep(device, readers)
            total = sum(map(sizes.__getitem__, placed))
            for key in new:
                total += sizes[key]
                if total > limit:
                    raise self._too_much(device, readers[key], f"its {limit:.0f} B are not enough")
                view = read_tile(compiled.tensors, compiled.tiles[-1 - key])
                try:
                    placed[key] = self._place(view, device)
                except DeviceMemoryError:
                    self._keep(device, readers)
                    try:
                        placed[key] = self._place(view, device)
                    except DeviceMemoryError as error:
                        raise self._too_much(device, readers[key], str(error)) from error
        return {key: placed[key] for key in readers}

    def _keep(self, device: int, readers: dict[int, int]) -> None:
        """Free the tiles that only other plans need."""
        placed = self._placed[device]
        for key in [key for key in placed if key not in readers]:
            del placed[key]

    def _too_much(self, device: int, op: int, why: str) -> DeviceMemoryError:
        graph = self._compiled.graph
        return DeviceMemoryError(
            f"{graph.name}: op {op} ({shown(graph.names[op])}) on device "
            f"{self._names[device]!r}: the inputs and parameters do not fit: {why}",
            op,
            self._names[device],
        )


def tile_bytes(tile: Tile, tensor: Tensor) -> int:
    """Bytes of a tile of a whole tensor."""
    return math.prod(stop - start for start, stop in tile.slices) * tensor.element_size()


def each_tensor(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Apply a function to the value of an op: a tensor, or a tuple of tensors and None."""
    if isinstance(value, tuple):
        return tuple(None if tensor is None else function(tensor) for tensor in value)
    return function(value)
