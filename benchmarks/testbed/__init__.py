"""Predict how a changed job runs, write it down, then run it: real jobs over shaped links."""
