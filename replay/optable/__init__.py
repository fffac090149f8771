"""Operation tables: one row per coarse operation of each worker, turned into a job graph."""
