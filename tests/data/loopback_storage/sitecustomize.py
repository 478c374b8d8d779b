"""On PYTHONPATH: lets a process's Daytona SDK upload to the loopback server, which has no TLS."""

from hermes_rl.testing.daytona_storage import allow_loopback_storage

allowed = allow_loopback_storage()
allowed.__enter__()
