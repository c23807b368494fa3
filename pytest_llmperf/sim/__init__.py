"""The simulated engine. The rest of the package uses what is here, and nothing else of it.

Light to import: what serves is loaded in the server's own process.
"""

from pytest_llmperf.sim.parameters import is_spec, parse_spec, with_start
from pytest_llmperf.sim.process import SimProcess, start

__all__ = ["SimProcess", "is_spec", "parse_spec", "start", "with_start"]
