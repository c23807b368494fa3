"""Command line, markers, profile and ini -> frozen ``Settings``."""
