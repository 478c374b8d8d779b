"""Training environments that ship with the library."""
