"""Work in pinned processes: one core and one thread each, errors come back, none is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import CancelledError, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from doppler.cores import core_ids, cores
from doppler.errors import DopplerError, MemoryLimitError, UnknownNameError
from doppler.evaluation.processes import PinnedProcesses

pytestmark = pytest.mark.slow

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux pins processes")
PREPARED: list[int] = []


@dataclass(frozen=True)
class Place:
    """Where a function ran, and with how many threads."""

    process: int
    core_ids: tuple[int, ...]
    of_threads: frozenset[int]
    torch: int
    annealing: int
    rollout: int
    prepared: int


def prepare() -> None:
    PREPARED.append(os.getpid())


def where(seconds: float = 0.0) -> Place:
    import torch

    from doppler import Cluster, Problem, workloads
    from doppler.policy.rollout import Roller
    from doppler.search.anneal import Annealer

    problem = Problem(workloads.chainmm(8, 8, 8, 8, 8, tiles=1), Cluster.uniform(2))
    time.sleep(seconds)
    threads = [int(path.name) for path in Path("/proc/self/task").iterdir()]
    return Place(
        os.getpid(),
        core_ids(),
        frozenset(core for thread in threads for core in os.sched_getaffinity(thread)),
        torch.get_num_threads(),
        Annealer(problem).threads,
        Roller(problem).threads,
        len(PREPARED),
    )


def fail(error: DopplerError) -> None:
    raise error


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def wait(path: str) -> None:
    Path(path).write_text(str(os.getpid()))
    time.sleep(600)


def refuse() -> None:
    raise MemoryLimitError("policy.safetensors: does not fit")


def started(path: Path) -> int:
    """Return the process that called ``wait``."""
    deadline = time.monotonic() + 60
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < deadline, "the process did not start"
        time.sleep(0.02)
    return int(path.read_text())


def ends(process: int) -> bool:
    """Whether a process ends within a minute."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


@pytest.fixture(scope="module")
def processes():
    with PinnedProcesses(prepare) as processes:
        yield processes


@linux
def test_each_has_one_core_of_its_own_and_one_thread_per_method(processes) -> None:
    with ThreadPoolExecutor(cores()) as callers:
        places = list(callers.map(lambda _: processes.run(where, 2.0), range(cores())))
    assert sorted(place.core_ids for place in places) == [(core,) for core in core_ids()]
    assert len({place.process for place in places} | {os.getpid()}) == cores() + 1
    for place in places:
        assert place.of_threads == set(place.core_ids), "a thread runs on another core"
        assert (place.torch, place.annealing, place.rollout) == (1, 1, 1)
        assert place.prepared == 1


@linux
def test_a_process_is_pinned_before_it_loads_anything(tmp_path) -> None:
    script = tmp_path / "main.py"
    script.write_text(
        "import os\n"
        "CORES = len(os.sched_getaffinity(0))\n"
        "def seen():\n"
        "    return CORES\n"
        "if __name__ == '__main__':\n"
        "    from doppler.evaluation.processes import PinnedProcesses\n"
        "    with PinnedProcesses(seen) as processes:\n"
        "        print(processes.run(seen), len(os.sched_getaffinity(0)))\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", str(len(core_ids()))]


@pytest.mark.parametrize(
    "error",
    [
        MemoryLimitError("layer.json: device 'gpu0' lacks 3 MB"),
        UnknownNameError("method", "hefft", ["heft", "random"]),
    ],
)
def test_an_error_is_that_of_the_function(processes, error) -> None:
    with pytest.raises(type(error)) as caught:
        processes.run(fail, error)
    assert str(caught.value) == str(error)


@linux
def test_a_process_that_dies_is_replaced(processes) -> None:
    for _ in range(cores()):
        with pytest.raises(BrokenProcessPool):
            processes.run(die)
    assert processes.run(where).prepared == 1


def test_what_prepares_may_fail_and_is_tried_again() -> None:
    with PinnedProcesses(refuse) as processes:
        for _ in range(2):
            with pytest.raises(MemoryLimitError, match="does not fit"):
                processes.run(prepare)


@linux
def test_an_exception_ends_what_runs_at_once(tmp_path) -> None:
    outcome: list[BaseException] = []

    def call() -> None:
        try:
            processes.run(wait, str(tmp_path / "pid"))  # type: ignore[attr-defined]
        except BaseException as error:
            outcome.append(error)

    processes = PinnedProcesses(prepare)
    caller = threading.Thread(target=call)
    with suppress(KeyboardInterrupt), processes:
        caller.start()
        process = started(tmp_path / "pid")
        raise KeyboardInterrupt
    caller.join(60)
    assert ends(process)
    assert [type(error) for error in outcome] == [CancelledError]
    with pytest.raises(CancelledError, match="called off"):
        processes.run(prepare)


@linux
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_none_outlives_its_parent(tmp_path, how) -> None:
    code = (
        "import sys, test_processes as t\n"
        "if __name__ == '__main__':\n"
        "    with t.PinnedProcesses(t.prepare) as processes:\n"
        "        processes.run(t.wait, sys.argv[1])\n"
    )
    path = [str(Path(__file__).parent), *sys.path]
    parent = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "pid")],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(path)},
        stderr=subprocess.DEVNULL,
        # A shell lets what it starts in the background ignore interrupts, and so the tests' child.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        process = started(tmp_path / "pid")
        parent.send_signal(how)
        assert parent.wait(60) != 0
        assert ends(process)
    finally:
        parent.kill()
        parent.wait()
