"""How fast and how true the client is, beside its peers: ``python -m benchmarks.run --help``."""
