"""Models to place, of random weights: nothing is downloaded.

Each module has a function ``model(size, **changes)`` that returns the model, in evaluation mode,
and its example inputs: a tuple, or a dict of keyword inputs. The sizes are

- ``tiny``: for tests, less than a megabyte of parameters where the architecture allows;
- ``small``: for runs on CPUs, most ops take a millisecond and more on one core;
- ``full``: as large as in practice, on the meta device, where nothing is allocated: to capture,
  place and simulate.

``full()`` is ``model("full")``, for the command line: ``doppler capture examples.llama:full``.
"""

#: Modules of this package and the function of each that returns a model: ``MODULE:FUNCTION``.
EXAMPLES = (
    "mlp:model",
    "inception:model",
    "bert:model",
    "gpt2:model",
    "llama:model",
    "mixtral:model",
    "experts:model",
    "t5:model",
    "two_tower:model",
    "unet:model",
    "lstm:model",
    "lstm:layers",
)
