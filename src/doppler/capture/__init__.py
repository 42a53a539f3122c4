"""PyTorch models as graphs: export, sharding, fusion, training steps."""
