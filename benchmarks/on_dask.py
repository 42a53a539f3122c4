"""A graph on dask.distributed: a process of one thread for each device, and every task pinned."""

from __future__ import annotations

import itertools
import logging
import tempfile
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Self

import dask
from dask.base import annotate
from distributed import Client, LocalCluster, WorkerPlugin, get_worker
from peers import Ops, Work

if TYPE_CHECKING:
    from torch import Tensor


class OpsPlugin(WorkerPlugin):
    """Keeps the ops on a worker."""

    name = "ops"

    def __init__(self, ops: Ops) -> None:
        self.ops = ops


def compute(op: int, *produced: Tensor) -> Tensor:
    """Run an op on the worker that calls this."""
    plugin = get_worker().plugins[OpsPlugin.name]
    assert isinstance(plugin, OpsPlugin)
    return plugin.ops.compute(op, *produced)


class DaskRunner:
    """A cluster of worker processes on this machine, one for every device of a placement.

    The whole graph is submitted at once; an annotation, ``workers``, restricts each task to the
    worker of its device. The outputs of the graph are fetched in one batch.

    Parameters
    ----------
    work : Work

    Attributes
    ----------
    folder : str
        Everything that Dask writes, while it is there.
    """

    def __init__(self, work: Work) -> None:
        self.work = work
        self.folder = ""
        self._client: Any = None
        self._home: list[str] = []
        self._runs = itertools.count()
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        work = self.work
        with ExitStack() as stack:
            self.folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="dask-"))
            # The scheduler, which has no option for it, writes there too.
            stack.enter_context(dask.config.set({"temporary-directory": self.folder}))
            cluster = stack.enter_context(
                LocalCluster(
                    n_workers=work.n_devices,
                    threads_per_worker=1,
                    processes=True,
                    host="127.0.0.1",
                    dashboard_address=None,
                    silence_logs=logging.ERROR,
                )
            )
            self._client = stack.enter_context(Client(cluster))
            self._client.register_plugin(OpsPlugin(Ops(work.specs, work.tensors)))
            workers = sorted(self._client.scheduler_info(n_workers=-1)["workers"])
            self._home = [workers[device] for device in work.devices]
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def run(self) -> tuple[float, dict[int, Tensor]]:
        """Run the graph; seconds until its outputs are here, and the outputs."""
        work = self.work
        # Of a key that it has seen Dask would give the old result.
        run = f"run{next(self._runs)}"
        keys = [(run, op) for op in range(len(work.specs))]
        tasks = {
            keys[op]: (compute, op, *[keys[read] for read in work.reads[op]]) for op in work.order
        }
        home = self._home
        wanted = [keys[op] for op in work.outputs]
        begin = time.perf_counter()
        with annotate(workers=lambda key: home[key[1]]):
            found = self._client.get(tasks, wanted)
        seconds = time.perf_counter() - begin
        return seconds, dict(zip(work.outputs, found, strict=True))
