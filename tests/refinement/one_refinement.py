"""Production under Stage III, to be killed: ``python one_refinement.py DIRECTORY``.

After each run it says how many runs the refiner has taken in.
"""

from __future__ import annotations

import sys
import time

from production import believed, really, refiner, simulated

from doppler import place


def main(directory: str) -> None:
    problem = believed()
    champion = place(problem, "sibling_affinity", budget=0.0)
    run = simulated(really(problem))
    found = refiner(problem, champion, background=True, learn_share=1.0, directory=directory)
    number = len(found.history)
    print(found._learner.pid, flush=True)  # type: ignore[union-attr]
    while True:
        number += 1
        found.observe(run(found.next(), number))
        time.sleep(0.01)
        print(number, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
