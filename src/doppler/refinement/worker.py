"""Learning beside production, in a process of its own.

``python -m doppler.refinement.worker DIRECTORY SHARE`` reads requests on its standard input, each a
line with the number of bytes that the journal has, learns from the journal so far, and answers each
with a line on its standard output: the event that production may append. It writes the policy's
weights, nothing else, and ends with its standard input, or with the process that started it, since
what that has forked holds the other end, too.
"""

from __future__ import annotations

import json
import os
import queue
import select
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from doppler.errors import DopplerError

GRAPH, CLUSTER, POLICY, JOURNAL, LOG = (
    "graph.json",
    "cluster.yaml",
    "policy.safetensors",
    "journal.jsonl",
    "learner.log",
)
# What a process may leave to others, bytes that are read at once, and seconds between two looks at
# whether production lives.
NICEST, CHUNK, LOOK_SECONDS = 19, 1 << 20, 1.0
# Seconds to rest at most, however small the share: a clock has its limits.
LONGEST_REST = 86_400.0


class LearnerProcess:
    """The process, as production sees it; nothing here waits for it.

    Parameters
    ----------
    directory : pathlib.Path
        With the graph, the cluster, the policy and the journal.
    share : float
        Of one core, that it may use.

    Raises
    ------
    DopplerError
        If it cannot be started.
    """

    def __init__(self, directory: Path, share: float) -> None:
        self._log = directory / LOG
        command = [sys.executable, "-P", "-m", "doppler.refinement.worker"]
        command += [str(directory), str(share)]
        try:
            # What this process imports, the other can; an empty entry is where this process is.
            package = Path(__file__).absolute().parents[2]
            paths = [*map(os.path.abspath, sys.path), str(package)]
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}
            with open(self._log, "wb") as log:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    env=environment,
                    bufsize=0,
                    # Ctrl-C is for production, which ends this process in its own time. Not a
                    # session of its own: Linux gives each as much of the cores as any other.
                    process_group=0,
                )
        except OSError as error:
            raise DopplerError(f"{error}: the learning process cannot be started") from None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests, self._answers = self._process.stdin, self._process.stdout
        os.set_blocking(self._answers.fileno(), False)
        self._read = bytearray()
        self.busy = False

    @property
    def pid(self) -> int:
        """Its number, for the system."""
        return self._process.pid

    def request(self, size: int) -> None:
        """Ask for a round of learning from so many bytes of the journal.

        Raises
        ------
        DopplerError
            If the process has ended.
        """
        try:
            self._requests.write(b"%d\n" % size)
        except OSError:
            raise self._ended() from None
        self.busy = True

    def answer(self) -> bytes | None:
        """Return the event that was learned, as JSON, if it is there.

        Raises
        ------
        DopplerError
            If learning failed, or the process has ended.
        """
        while self.busy:
            content = self._answers.read(CHUNK)
            if content is None:
                return None
            if not content:
                raise self._ended()
            self._read += content
            if content.endswith(b"\n"):
                lines, self._read = self._read.split(b"\n"), bytearray()
                # Python may have printed something while it started.
                texts = [bytes(line) for line in lines if line.startswith(b"{")]
                if texts:
                    self.busy = False
                    failed = json.loads(texts[-1]).get("error")
                    if failed is not None:
                        raise DopplerError(failed)
                    return texts[-1]
        return None

    def close(self) -> None:
        """End the process."""
        for stream in (self._requests, self._answers):
            with suppress(OSError):
                stream.close()
        self._process.kill()
        self._process.wait()

    def _ended(self) -> DopplerError:
        status = self._process.wait()
        lines = self._log.read_text(errors="replace").split("\n")
        why = next((line for line in reversed(lines) if line.strip()), "it says nothing")
        return DopplerError(f"the learning process has ended with status {status}: {why}")


def main(directory: Path, share: float) -> None:
    """Learn on request until standard input ends."""
    _yield_cores()
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    # What anything prints is no answer.
    os.dup2(2, 1)
    requests: queue.SimpleQueue[int] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(requests, os.getppid()), daemon=True).start()
    try:
        _serve(directory, share, requests, answers)
    except DopplerError as error:
        _send(answers, json.dumps({"error": str(error)}).encode())
    except Exception as error:
        _send(answers, json.dumps({"error": f"learning failed: {error!r}"}).encode())
        raise


def _serve(
    directory: Path, share: float, requests: queue.SimpleQueue[int], answers: BinaryIO
) -> None:
    from doppler.cluster import Cluster
    from doppler.graph.formats import load_graph
    from doppler.policy.checkpoint import load_policy
    from doppler.problem import Problem
    from doppler.refinement.events import parse_event
    from doppler.refinement.journal import read_journal
    from doppler.refinement.learning import Learner
    from doppler.refinement.state import fold
    from doppler.torch_threads import set_torch_threads

    set_torch_threads(1)
    graph, cluster = load_graph(directory / GRAPH), Cluster.load(str(directory / CLUSTER))
    problem = Problem(graph, cluster)
    learner = Learner(problem, load_policy(directory / POLICY), directory)
    state, begin = None, 0
    while True:
        size = requests.get()
        records, begin = read_journal(directory / JOURNAL, begin, size)
        events = map(parse_event, records)
        if state is None:
            state = fold(problem, events)
        for event in events:
            state.apply(event)
        before = time.process_time()
        _send(answers, learner.learn(state).model_dump_json().encode())
        pause = (time.process_time() - before) * (1.0 / share - 1.0)
        time.sleep(min(pause, LONGEST_REST))


def _receive(requests: queue.SimpleQueue[int], production: int) -> None:
    received = b""
    while os.getppid() == production:
        if not select.select([0], [], [], LOOK_SECONDS)[0]:
            continue
        content = os.read(0, CHUNK)
        if not content:
            break
        *lines, received = (received + content).split(b"\n")
        for line in lines:
            requests.put(int(line))
    # At once, in the middle of whatever is being learned.
    os._exit(0)


def _send(answers: BinaryIO, line: bytes) -> None:
    line = b"\n%b\n" % line
    while line:
        line = line[answers.write(line) :]


def _yield_cores() -> None:
    """Run only where nobody else wants to."""
    if hasattr(os, "SCHED_IDLE"):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    elif hasattr(os, "nice"):
        os.nice(NICEST)


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
