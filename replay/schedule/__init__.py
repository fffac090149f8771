"""Pipeline schedules: who works on which micro-batch when."""
