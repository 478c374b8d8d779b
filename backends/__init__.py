"""Sandbox backends, found by name through the entry-point group ``hermes_rl.backends``."""
