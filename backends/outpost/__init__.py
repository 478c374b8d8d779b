"""The supervisor inside each sandbox, and the host's end of its channel."""
