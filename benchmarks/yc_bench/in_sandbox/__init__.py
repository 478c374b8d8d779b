"""Programs that run inside the sandbox, uploaded from package data; standard library only."""
