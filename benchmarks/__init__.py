"""Benchmarks: task sets with their verification."""
