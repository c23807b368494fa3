"""Baselines: the schema of the YAML files, reading and writing them, matching, importing."""
