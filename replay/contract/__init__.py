"""Replay of large recordings: each rank reduced to what other ranks can notice of it."""
