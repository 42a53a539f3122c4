"""Where ops run: devices, links, clusters and the presets."""

from doppler.cluster.cluster import Cluster, save_cluster
from doppler.cluster.device import Device
from doppler.cluster.document import presets
from doppler.cluster.link import Link

__all__ = ["Cluster", "Device", "Link", "presets", "save_cluster"]
