"""Whose words the simulated engine speaks, one file an engine."""
