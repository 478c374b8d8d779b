"""YC-Bench: run a simulated company over years through a command line."""
