"""The Dynamo backend: ``torch.compile(model, backend="doppler", options={"devices": [...]})``.

Guards, compilation anew for other shapes and graph breaks are PyTorch's own. aot_autograd gives a
graph for the forward pass and one for the backward pass; each is placed when it first runs, by what
its ops take with the tensors that it is given, and runs on the devices from then on.
"""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import ref

from doppler import methods
from doppler.capture.capture import check_shard
from doppler.capture.fusion import FUSE, Views
from doppler.capture.fx import Placeholder, read_fx
from doppler.capture.lower import lower
from doppler.capture.operators import is_view
from doppler.capture.program import Program, Ref
from doppler.capture.sharding import shard_tensors
from doppler.capture.simplify import run_call, simplify
from doppler.checks import check_name, check_number
from doppler.engine import Backend, Engine
from doppler.errors import CaptureError, GraphError
from doppler.graph import Graph
from doppler.messages import shown_value
from doppler.placed.devices import (
    guessed_cluster,
    open_backend,
    physical_devices,
    usual_devices,
)
from doppler.placed.model import join, pieces_of
from doppler.placed.trials import Search, Trials, undisturbed_random_numbers
from doppler.placement import Placement

if TYPE_CHECKING:
    from torch import Tensor
    from torch.fx import GraphModule, Node

# Of a graph for symbolic shapes: so many are placed, further ones run as they are.
_MOST_SHAPES = 8


@dataclass(frozen=True, slots=True)
class Options:
    """What ``options`` of ``torch.compile`` may hold.

    Attributes
    ----------
    devices : sequence of str, optional
        As for :func:`doppler.compile`; default: all GPUs, or else the cores.
    budget : float
        Seconds of search for each graph, of which there are two for a training step.
    method, policy, seed
        As for :func:`doppler.place`.
    shard : mapping of str to int, optional
        ``{"tensor": 2}``. Here the batch cannot be sharded: nothing says which dimension it is.
    threads : int, optional
        Torch threads of each device of the CPU.
    memory : float
        Bytes that each device of the CPU may hold.
    fusion : float
        As for :func:`doppler.capture.capture.capture`.
    """

    devices: Sequence[str] | None = None
    budget: float = methods.DEFAULT_BUDGET
    method: str = methods.LEARNED
    policy: Any = methods.PRETRAINED
    seed: int = 0
    shard: Mapping[str, int] | None = None
    threads: int | None = None
    memory: float = math.inf
    fusion: float = FUSE


def dynamo_backend(
    module: GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Callable[..., Any]:
    """Compile a graph that Dynamo has found.

    What cannot be captured runs as it is, with a warning that says why. Parameters are brought to
    the devices anew only where they have changed. Let the model be on the first of the devices.

    Parameters
    ----------
    module : torch.fx.GraphModule
    example_inputs : sequence
    options : mapping of str, optional
        See :class:`Options`.
    mode : str, optional
        Must not be given.

    Raises
    ------
    DopplerError
        If an option is not known or out of range, or the devices are not there.

    Examples
    --------
    >>> compiled = torch.compile(
    ...     model, backend="doppler", options={"devices": ["cpu:0", "cpu:1"]}
    ... )  # doctest: +SKIP
    """
    from torch._dynamo.backends.common import aot_autograd

    if mode is not None:
        raise CaptureError(f"backend doppler: takes no mode, and {shown_value(mode)} is given")
    settings = _settings(options or {})

    def compiler(stage: str) -> Callable[[GraphModule, Sequence[Any]], Callable[..., Any]]:
        def compile(graph: GraphModule, example: Sequence[Any]) -> Callable[..., Any]:
            compiled = _Compiled(graph, stage, settings)

            def run(args: list[Any]) -> Sequence[Any]:
                return compiled(args)

            # aot_autograd looks for it: run empties the list, and inputs are freed when they are
            # not needed any more.
            run._boxed_call = True  # type: ignore[attr-defined]
            return run

        return compile

    backend = aot_autograd(
        fw_compiler=compiler("forward"),
        bw_compiler=compiler("backward"),
        inference_compiler=compiler("inference"),
    )
    compiled: Callable[..., Any] = backend(module, example_inputs)
    return compiled


@dataclass(frozen=True, slots=True)
class _Settings:
    options: Options
    backend: Backend
    ways: int


def _settings(given: Mapping[str, Any]) -> _Settings:
    for name in given:
        check_name(name, "option of the backend doppler", Options.__slots__)
    options = Options(**given)
    check_number(options.budget, "budget")
    check_number(options.fusion, "fusion", 0.0, 1.0)
    methods.check_options(budget=options.budget, seed=options.seed)
    check_name(options.method, "method", methods.METHODS)
    ways = check_shard(options.shard)
    if ways["batch"] > 1:
        raise CaptureError(
            "backend doppler: shard: nothing says which dimension is the batch here; use "
            "doppler.compile, or {'tensor': 2}"
        )
    devices = usual_devices() if options.devices is None else options.devices
    backend = open_backend(devices, threads=options.threads, memory=options.memory)
    return _Settings(options, backend, ways["tensor"])


def choose_placement(engine: Engine, options: Options) -> Placement:
    """Place the graph of an engine by what runs on its devices take."""
    search = Search(options.method, options.policy, options.seed)
    with undisturbed_random_numbers():
        trials = Trials(engine, guessed_cluster(engine.backend), search)
        return trials.run(options.budget).chosen


class _Compiled:
    """A graph of aot_autograd; called with a list of its inputs, which it empties."""

    def __init__(self, module: GraphModule, stage: str, settings: _Settings) -> None:
        self._module = module
        self._stage = stage
        self._settings = settings
        self._symbolic = _is_symbolic(module)
        # By shapes, if they are symbolic; None: runs as it is.
        self._placed: dict[tuple[Any, ...], _Placed | None] = {}
        self._lock = threading.Lock()

    def __call__(self, args: list[Any]) -> Sequence[Any]:
        import torch

        given = list(args)
        args.clear()
        key = tuple(map(_shape, given)) if self._symbolic else ()
        with torch.no_grad():
            with self._lock:
                if key not in self._placed:
                    self._placed[key] = self._place(given)
                placed = self._placed[key]
            if placed is not None:
                return placed(given)
            results: Sequence[Any] = self._module(*given)
            return results

    def _place(self, given: list[Any]) -> _Placed | None:
        try:
            if len(self._placed) >= _MOST_SHAPES:
                raise CaptureError(f"{self._stage} graph: more than {_MOST_SHAPES} shapes")
            module = _specialized(self._module, given) if self._symbolic else self._module
            captured = _capture(module, self._stage, self._settings)
            if captured is None:
                return None
            return _Placed(captured, self._settings, given)
        except (CaptureError, GraphError) as error:
            warnings.warn(
                f"doppler: runs on one device as PyTorch itself would: {error}", stacklevel=2
            )
            return None


@dataclass(frozen=True, slots=True)
class _Result:
    """One entry of what a graph returns.

    Attributes
    ----------
    value : object
        Itself, if it is no tensor.
    name : str
        The output of the program, if devices compute it.
    view : Ref or None
        The value of the program, if it is an input or a view of one.
    copy : bool
        Whether it must share no memory with an input or an earlier entry.
    device : torch.device or None
    """

    value: Any = None
    name: str = ""
    view: Ref | None = None
    copy: bool = False
    device: Any = None


@dataclass(frozen=True, eq=False)
class _Captured:
    graph: Graph
    program: Program
    constants: dict[str, Tensor]
    names: tuple[str, ...]
    results: tuple[_Result, ...]


def _capture(module: GraphModule, stage: str, settings: _Settings) -> _Captured | None:
    """Make a graph of a graph of aot_autograd; None where it computes nothing."""
    nodes = [node for node in module.graph.nodes if node.op == "placeholder"]
    (returned,) = next(iter(module.graph.find_nodes(op="output"))).args
    placeholders = [Placeholder(node.name, "input") for node in nodes]
    labels = [f"result{number}" for number in range(len(returned))]
    program, constants = read_fx(module, placeholders, labels, stage)
    program, constants = simplify(program, constants)
    views = Views(program)
    refs = {output.name: output.pieces[0][0] for output in program.outputs}
    results: list[_Result] = []
    first: dict[Ref, str] = {}
    roots: dict[Ref, Node] = {}
    for label, node in zip(labels, returned, strict=True):
        found = refs.get(label)
        if found is None:
            results.append(_Result(value=node))
            continue
        device, root = node.meta["val"].device, _root(node)
        base = views.base(found)
        if base.value < len(program.inputs):
            copy = root.name != program.inputs[base.value].source
            results.append(_Result(view=found, copy=copy, device=device))
            continue
        name = first.setdefault(found, label)
        copy = roots.setdefault(base, root) is not root
        results.append(_Result(name=name, copy=copy, device=device))
    wanted = {result.name for result in results}
    outputs = tuple(output for output in program.outputs if output.name in wanted)
    if not outputs:
        return None
    # Views of inputs are taken in the calling thread, from the program as it is here.
    computed = shard_tensors(
        Program(program.name, program.sources, program.inputs, program.calls, outputs),
        settings.ways,
    )
    graph = lower(computed, constants, fusion=settings.options.fusion)
    names = tuple(node.name for node in nodes)
    return _Captured(graph, program, constants, names, tuple(results))


def _root(node: Node) -> Node:
    """Return the node whose memory a node shares."""
    import torch

    while isinstance(node.target, torch._ops.OpOverload):
        op = str(node.target)
        first = node.args[0] if node.args else None
        if not is_view(op) or not isinstance(first, torch.fx.Node):
            break
        node = first
    return node


@dataclass
class _Seen:
    """Inputs as they were when they were last brought to the devices."""

    marks: dict[str, tuple[Any, ...]] = field(default_factory=dict)

    def changed(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return those that are other tensors now, or were written to."""
        changed = {}
        for name, tensor in tensors.items():
            base = tensor if tensor._base is None else tensor._base
            version = -1 if base.is_inference() else base._version
            place = tensor.storage_offset(), tensor.stride(), version
            known = self.marks.get(name)
            if known is None or known[0]() is not base or known[1] != place or version < 0:
                changed[name] = tensor.detach()
                self.marks[name] = ref(base), place
        return changed

    def forget(self, names: Iterable[str]) -> None:
        """Count some as changed."""
        for name in names:
            self.marks.pop(name, None)


def _is_parameter(tensor: Tensor) -> bool:
    import torch

    return isinstance(tensor if tensor._base is None else tensor._base, torch.nn.Parameter)


class _Placed:
    """A graph on the devices."""

    def __init__(self, captured: _Captured, settings: _Settings, given: Sequence[Any]) -> None:
        self._captured = captured
        self._results = captured.results
        self._pieces = pieces_of(captured.graph)
        self._seen = _Seen()
        self._lock = threading.Lock()
        self._first = physical_devices(settings.backend)[0]
        tensors = {**captured.constants, **self._seen.changed(self._tensors(given))}
        self._engine = Engine(captured.graph, settings.backend, tensors=tensors, share=True)
        self._placement = choose_placement(self._engine, settings.options)

    def __call__(self, given: Sequence[Any]) -> list[Any]:
        with self._lock:
            tensors = self._tensors(given)
            changed = self._seen.changed(tensors)
            try:
                outputs = self._engine.run(self._placement, tensors=changed).outputs
            except BaseException:
                self._seen.marks.clear()
                raise
            # Activations live no longer than eager keeps them.
            passing = [name for name, tensor in tensors.items() if not _is_parameter(tensor)]
            self._engine.release(passing)
            self._seen.forget(passing)
            whole = {
                name: join([(outputs[op], tile) for op, tile in pieces], self._first)
                for name, pieces in self._pieces.items()
            }
        return [self._result(result, whole, given) for result in self._results]

    def _tensors(self, given: Sequence[Any]) -> dict[str, Tensor]:
        return {
            name: value
            for name, value in zip(self._captured.names, given, strict=True)
            if name in self._captured.graph.tensors
        }

    def _result(self, result: _Result, whole: Mapping[str, Tensor], given: Sequence[Any]) -> Any:
        if result.view is not None:
            value = self._view(result.view, given)
        elif result.name:
            value = whole[result.name]
        else:
            return result.value
        if result.copy:
            value = value.clone()
        return value.to(result.device)

    def _view(self, wanted: Ref, given: Sequence[Any]) -> Any:
        """Take a view of an input."""
        program, captured = self._captured.program, self._captured
        chain: list[int] = []
        at = wanted
        while at.value >= len(program.inputs):
            chain.append(at.value)
            at = next(program.calls[at.value - len(program.inputs)].refs())
        source = program.inputs[at.value].source
        values = {
            at.value: captured.constants[source]
            if source in captured.constants
            else given[captured.names.index(source)]
        }
        for value in reversed(chain):
            values[value] = run_call(program.calls[value - len(program.inputs)], values)
        found = values[wanted.value]
        return found if wanted.item < 0 else found[wanted.item]


def _is_symbolic(module: GraphModule) -> bool:
    import torch

    return any(
        isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)
        or (
            isinstance(value, torch.Tensor)
            and any(type(extent) is not int for extent in value.shape)
        )
        for node in module.graph.find_nodes(op="placeholder")
        for value in (node.meta.get("val"),)
    )


def _shape(value: Any) -> Any:
    import torch

    return tuple(value.shape) if isinstance(value, torch.Tensor) else value


def _specialized(module: GraphModule, given: Sequence[Any]) -> GraphModule:
    """Trace a graph of symbolic shapes again for the shapes of some inputs."""
    from torch.fx.experimental.proxy_tensor import make_fx

    try:
        found: GraphModule = make_fx(module, tracing_mode="fake")(*given)
    except Exception as error:
        reason = " ".join(str(error).split())
        raise CaptureError(f"a graph of symbolic shapes cannot be traced: {reason}") from error
    return found
