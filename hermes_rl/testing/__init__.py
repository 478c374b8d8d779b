"""Fakes and conformance suites for people who write backends, models, tools and tasks."""
