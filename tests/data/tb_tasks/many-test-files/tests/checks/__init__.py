"""Checks of squares.json."""
