"""The command line: ``python -m hermes_rl``."""
