"""A workload read off a recorded job: layers, phases, micro-batches, stages, layout and times."""
