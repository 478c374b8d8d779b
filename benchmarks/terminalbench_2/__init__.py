"""``terminal-bench-2``: 89 tasks in a terminal, each with an image and tests of its own."""
