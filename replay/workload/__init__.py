"""What one training step does: blocks of operations, from a model, a trace or a dry run."""
