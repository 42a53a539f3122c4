"""Where ops run: devices, links, clusters and the presets."""

from doppler.cluster.cluster import Cluster, Device, Link
from doppler.cluster.loading import load_cluster, presets, save_cluster

__all__ = ["Cluster", "Device", "Link", "load_cluster", "presets", "save_cluster"]
