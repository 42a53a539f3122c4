"""PyTorch models as graphs: export, sharding, fusion, training steps."""

from doppler.capture.capture import Captured, capture
from doppler.capture.region import region

__all__ = ["Captured", "capture", "region"]
