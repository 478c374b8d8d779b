"""``hermes-swe``: write a function so that hidden tests pass."""
