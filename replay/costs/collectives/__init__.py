"""Cost of collectives: what NCCL chooses, and how long that takes on a cluster."""
