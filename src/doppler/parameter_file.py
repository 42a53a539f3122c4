"""Reading ``params.yaml``: a stage of the pipeline validates the sections that it reads."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from doppler.documents.schema import check
from doppler.documents.yaml_text import read_yaml
from doppler.errors import ParamsError, UnknownNameError
from doppler.settings import Settings

#: The sections that a parameter file may have.
SECTIONS = (
    "seed",
    "graphs",
    "training",
    "generated",
    "traces",
    "policy",
    "imitate",
    "reinforce",
    "refine",
    "evaluate",
    "nightly",
)

Sections = TypeVar("Sections", bound=Settings)


def load_sections(path: str | Path, model: type[Sections]) -> Sections:
    """Read and validate some sections of a parameter file.

    Parameters
    ----------
    path : path-like
        A YAML file.
    model : type
        Its fields are the sections; the others are skipped.

    Raises
    ------
    ParamsError
        If the file is missing or not YAML, a section is unknown, or a parameter of ``model`` is
        unknown (the message names the nearest), missing, of the wrong type or out of range.
    """
    values = read_yaml(path, "parameter", ParamsError)
    if not isinstance(values, dict):
        raise ParamsError(f"{path}: must hold the sections {', '.join(SECTIONS)}")
    for name in values:
        if name not in SECTIONS:
            raise ParamsError(f"{path}: {UnknownNameError('parameter', str(name), SECTIONS)}")
    own = {key: value for key, value in values.items() if key in model.model_fields}
    return check(model, own, str(path), ParamsError)
