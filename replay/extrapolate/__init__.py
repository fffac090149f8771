"""From a workload, a layout and a cluster to the job graph of a training step."""
