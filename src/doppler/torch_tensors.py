"""Files of torch tensors of any dtype: safetensors, as others write them too."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from doppler.errors import CheckpointError
from doppler.files import read_bytes, write_atomic

if TYPE_CHECKING:
    from torch import Tensor


def save_torch_tensors(path: str | os.PathLike[str], tensors: Mapping[str, Tensor]) -> Path:
    """Write tensors, whole or not at all. Each gets memory of its own in the file.

    Raises
    ------
    DopplerError
        If the file cannot be written.
    """
    from safetensors.torch import save

    own = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    return write_atomic(path, save(own))


def load_torch_tensors(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """Read a safetensors file, once, so also from a pipe.

    Raises
    ------
    CheckpointError
        If the file is missing or corrupt.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        return dict(load(read_bytes(path)))
    except FileNotFoundError:
        raise CheckpointError(f"{path}: no such file of tensors") from None
    except IsADirectoryError:
        raise CheckpointError(f"{path}: is a directory, not a safetensors file") from None
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        why = " ".join(str(error).split())[:200]
        raise CheckpointError(
            f"{path}: corrupt, or not a safetensors file ({why}); save it anew"
        ) from None
