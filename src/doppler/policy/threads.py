"""How many threads torch uses for small tensors: one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """Let torch compute in the calling thread alone.

    Handing small tensors to other threads costs more than it saves, and far more where another
    process keeps a core busy: every layer then waits for a thread that is not running.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
