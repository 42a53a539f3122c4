"""A graph on Ray: one actor of one core for each device, object references as the edges."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

# Ray reads them when it is imported: it reports nothing, listens on the loopback address only,
# and leaves the variables that hide GPUs as they are.
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"

import peers
import ray

if TYPE_CHECKING:
    from torch import Tensor

# Sockets lie in the session's folder, and a path to one may have some 100 characters.
SHORT = Path("/tmp")
STORE_BYTES = 128 * 1024**2


class RayRunner:
    """A Ray of this machine alone, with an actor for every device of a placement.

    All calls are submitted at once, in topological order. They take object references as
    arguments, so Ray itself orders them and moves the tensors; the outputs of the graph are
    fetched in one batch.

    Parameters
    ----------
    work : Work

    Attributes
    ----------
    folder : str
        Everything that Ray writes, while it is there.
    """

    def __init__(self, work: peers.Work) -> None:
        self.work = work
        self.folder = ""
        self._actors: list[Any] = []
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        work = self.work
        with ExitStack() as stack:
            self.folder = stack.enter_context(
                tempfile.TemporaryDirectory(
                    prefix="ray-", dir=SHORT if SHORT.is_dir() else None, ignore_cleanup_errors=True
                )
            )
            stack.callback(ray.shutdown)
            ray.init(
                address="local",
                num_cpus=work.n_devices,
                num_gpus=0,
                include_dashboard=False,
                object_store_memory=STORE_BYTES,
                log_to_driver=False,
                logging_level=logging.ERROR,
                _temp_dir=self.folder,
            )
            # The folder of these files need not be on the path of Ray's processes.
            ray.cloudpickle.register_pickle_by_value(sys.modules[peers.__name__])
            actor = ray.remote(num_cpus=1)(peers.Ops)
            self._actors = [actor.remote(work.specs, work.tensors) for _ in range(work.n_devices)]
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._actors = []
        self._stack.close()

    def run(self) -> tuple[float, dict[int, Tensor]]:
        """Run the graph; seconds until its outputs are here, and the outputs."""
        work = self.work
        reads = work.reads
        compute = [self._actors[device].compute for device in work.devices]
        references: list[Any] = [None] * len(compute)
        begin = time.perf_counter()
        for op in work.order:
            references[op] = compute[op].remote(op, *[references[read] for read in reads[op]])
        found = ray.get([references[op] for op in work.outputs])
        seconds = time.perf_counter() - begin
        return seconds, dict(zip(work.outputs, found, strict=True))
