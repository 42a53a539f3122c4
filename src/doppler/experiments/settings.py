"""The parameter file of the experiments: for each scale, the settings of each experiment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from doppler.documents.schema import check
from doppler.documents.yaml_text import read_yaml
from doppler.errors import ParamsError, UnknownNameError
from doppler.experiments.cell import Cell
from doppler.experiments.names import EXPERIMENTS, experiment
from doppler.graph.workloads.settings import Graphs
from doppler.parameter_file import load_sections
from doppler.settings import Settings

#: How much is run: in CI, by default, on a big machine.
SCALES = ("miniature", "reduced", "full")


class _GraphSections(Settings):
    graphs: Graphs


class ExperimentParams(Settings):
    """The parameters of all experiments at the scale that the file asks for.

    Attributes
    ----------
    path : str
        Of the file.
    scale : str
        One of ``SCALES``.
    sections : dict of str to dict
        The settings of each experiment, not validated yet: a stage reads its own alone.
    graphs : dict of str to WorkloadSettings
        The graphs that may be named.
    """

    path: str
    scale: str
    sections: dict[str, Any]
    graphs: Graphs

    def cells(self, name: str) -> list[Cell]:
        """List the cells of an experiment.

        Raises
        ------
        ParamsError
            If a setting of it is unknown, missing or out of range, or two cells have one name.
        UnknownNameError
            If it names a graph or a cluster that there is not.
        """
        module = experiment(name)
        values = self.sections.get(name) or {}
        where = f"{self.path}: {self.scale}.{name}"
        settings = check(module.SETTINGS, values, where, ParamsError)
        found = list(module.cells(settings, self.graphs))
        names = [cell.name for cell in found]
        for each in names:
            if names.count(each) > 1:
                raise ParamsError(f"{where}: two cells are named {each}; name no case twice")
        return found


def load_experiments(
    path: str | Path = "experiments/params.yaml", params: str | Path = "params.yaml"
) -> ExperimentParams:
    """Read the parameters of the experiments.

    Parameters
    ----------
    path : path-like
        Holds ``scale``, and a section for each scale.
    params : path-like
        Whose ``graphs`` they may name.

    Raises
    ------
    ParamsError
        If a file is missing or not YAML, or names a scale or an experiment that there is not.
    """
    values = read_yaml(path, "parameter", ParamsError)
    known = ("scale", *SCALES)
    if not isinstance(values, dict):
        raise ParamsError(f"{path}: must hold {', '.join(known)}")
    for name in values:
        if name not in known:
            raise ParamsError(f"{path}: {UnknownNameError('parameter', str(name), known)}")
    scale = values.get("scale", "reduced")
    if scale not in SCALES:
        raise ParamsError(f"{path}: {UnknownNameError('scale', str(scale), SCALES)}")
    sections = values.get(scale) or {}
    if not isinstance(sections, dict):
        raise ParamsError(f"{path}: {scale}: must hold a section for each experiment")
    for name in sections:
        if name not in EXPERIMENTS:
            error = UnknownNameError("experiment", str(name), EXPERIMENTS)
            raise ParamsError(f"{path}: {scale}: {error}")
    graphs = load_sections(params, _GraphSections).graphs
    return ExperimentParams(path=str(path), scale=scale, sections=sections, graphs=graphs)
