"""What happened under Stage III, event by event: all that it remembers."""

from __future__ import annotations

import base64
import zlib
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, PlainValidator, TypeAdapter

from doppler.placement import Placement
from doppler.refinement.history import Kind
from doppler.refinement.settings import ErrorBudget, Guard, LearningSettings

#: What a refinement may learn by: fitting the simulator; searching it; updating the policy.
CALIBRATION, SEARCH, POLICY_GRADIENT = PARTS = ("calibration", "search", "policy_gradient")


def _packed(dtype: str) -> Any:
    """Annotation of an array that is JSON text: base64 of zlib of little-endian values."""

    def decode(value: object) -> npt.NDArray[Any]:
        if isinstance(value, str):
            content = zlib.decompress(base64.b64decode(value, validate=True))
            value = np.frombuffer(content, dtype)
        return np.asarray(value).astype(np.dtype(dtype).newbyteorder("="))

    def encode(value: npt.NDArray[Any]) -> str:
        return base64.b64encode(zlib.compress(value.astype(dtype).tobytes(), 1)).decode()

    return PlainValidator(decode), PlainSerializer(encode)


Integers = Annotated[npt.NDArray[np.int32], *_packed("<i4")]
# Single precision: whoever makes an event goes on with what a reader of it will see.
Singles = Annotated[npt.NDArray[np.float32], *_packed("<f4")]


class _Event(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, arbitrary_types_allowed=True
    )


class Begun(_Event):
    """A refinement begins; always the first event.

    Attributes
    ----------
    fingerprint : str
        Of the problem as believed.
    runtime : {"priority", "fifo"}
    devices, priority : int32 array, shape [ops]
        The first champion.
    parts : tuple of str
        What it may learn by, see :data:`PARTS`.
    """

    event: Literal["begun"] = "begun"
    format: Literal["doppler-refinement"] = "doppler-refinement"
    version: Literal[2] = 2
    fingerprint: str
    runtime: Literal["priority", "fifo"]
    devices: Integers
    priority: Integers | None
    parts: Annotated[tuple[str, ...], Field(strict=False)]

    @property
    def champion(self) -> Placement:
        """The first champion."""
        return Placement(self.devices, self.priority)


class Configured(_Event):
    """Settings that hold from here on."""

    event: Literal["configured"] = "configured"
    seed: int
    guard: Guard
    budget: ErrorBudget
    learning: LearningSettings


class Ran(_Event):
    """A production run ended.

    Attributes
    ----------
    run : int
        From 1.
    time : str
        When it ended: UTC, ISO 8601.
    kind : str
        See :mod:`doppler.refinement.history`.
    placement : int
        Its number.
    predicted : float, optional
        Seconds.
    makespan : float, optional
        Measured seconds; None: it failed.
    failed : str
        Why.
    shown : float32 array, shape [devices + links], optional
        Factors that its trace shows; nan where it shows none.
    """

    event: Literal["ran"] = "ran"
    run: int
    time: str
    kind: Kind
    placement: int
    predicted: float | None = None
    makespan: float | None = None
    failed: str = ""
    shown: Singles | None = None


class Found(_Event):
    """A placement that learning proposes.

    Attributes
    ----------
    kind : {"candidate", "episode"}
    devices, priority : int32 array, shape [ops]
        Of an episode the priorities are the order that SEL drew.
    log_probabilities : float32 array, shape [ops], optional
        Of an episode that was sampled, by step: what SEL's and PLC's choices had when drawn.
    """

    kind: Literal["candidate", "episode"]
    devices: Integers
    priority: Integers | None
    log_probabilities: Singles | None = None

    @property
    def placement(self) -> Placement:
        """The placement itself."""
        return Placement(self.devices, self.priority)


class Learned(_Event):
    """A round of learning ended.

    Attributes
    ----------
    round : int
        From 1.
    after : int
        Runs that it knew of.
    explanations : float32 array, shape [(1 + explanations) x values]
        Of the calibration, row by row, the best first.
    jitter : float
    found : tuple of Found
        They get the next numbers, in this order.
    dropped : tuple of int
        Placements that are forgotten unless they have run.
    predicted : int32 array, shape [placements]
        Numbers of the placements whose seconds are predicted.
    predictions : float32 array, shape [placements x (1 + explanations)]
        Logarithms of seconds, row by row.
    weights : str, optional
        Digest of the file with the policy's new weights; None: they have not changed.
    learned_from : int
        The last run that the policy has learned from.
    """

    event: Literal["learned"] = "learned"
    round: int
    after: int
    explanations: Singles
    jitter: float
    found: Annotated[tuple[Found, ...], Field(strict=False)]
    dropped: Annotated[tuple[int, ...], Field(strict=False)]
    predicted: Integers
    predictions: Singles
    weights: str | None
    learned_from: int


Event = Begun | Configured | Ran | Learned
_EVENTS: TypeAdapter[Event] = TypeAdapter(Annotated[Event, Field(discriminator="event")])


def parse_event(text: bytes | str) -> Event:
    """Read an event from JSON.

    Raises
    ------
    ValueError
        If it is none.
    """
    return _EVENTS.validate_json(text)
