"""What work costs on hardware that was not measured: pure functions over arrays."""
