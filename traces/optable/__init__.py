"""Operation tables: one row per coarse operation of each worker, read into arrays."""
