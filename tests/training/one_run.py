"""One run of a training stage, to be killed: ``python one_run.py STAGE DIRECTORY THREADS``.

It says ``ready`` once all is compiled, checkpoints after every update, and at its end leaves the
weights and the incumbents in the directory, beside the metrics.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))

from training_cases import mixed_cases, small_policy, taught

from doppler.policy.checkpoint import save_policy
from doppler.tracking import CsvTracker
from doppler.training.imitation import ImitationSettings, imitate
from doppler.training.reinforce import ReinforceSettings, reinforce

UPDATES = 40


def main(stage: str, directory: Path, threads: int) -> None:
    cases = mixed_cases(threads)
    traces = [taught(case.problem, "critical_path", 6, seed=1) for case in cases]

    def train(updates: int, state: Path | None, tracker: CsvTracker | None) -> None:
        policy = small_policy()
        common: dict[str, Any] = {"seed": 3, "state": state, "tracker": tracker, "threads": threads}
        schedule: dict[str, Any] = {"updates": updates, "log_every": 7}
        if stage == "imitate":
            shown = ImitationSettings(**schedule, traces=2)
            imitate(policy, cases, traces, shown, checkpoint_seconds=0.0, **common)
        else:
            settings = ReinforceSettings(**schedule, episodes=6, entropy=0.01, validate_every=3)
            found = reinforce(policy, cases, settings, checkpoint_seconds=0.0, **common)
            best = {
                name: [each.makespan, each.episode, each.devices.tolist(), each.priority.tolist()]
                for name, each in sorted(found.best.items())
            }
            (directory / "incumbents.json").write_text(json.dumps([best, found.episodes]))
        save_policy(policy, directory / "policy.safetensors")

    train(1, None, None)
    for left in ("incumbents.json", "policy.safetensors"):
        (directory / left).unlink(missing_ok=True)
    print("ready", flush=True)
    train(UPDATES, directory / "state.safetensors", CsvTracker(directory / "metrics.csv"))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
