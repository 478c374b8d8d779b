"""What runs beside hermes-agent's tools: in a worker process, or (thread mode) in this one.

Standard library only, and relative imports only: a worker process may use an interpreter that
has hermes-agent but not this library, so ``__main__`` loads this directory as a package of its
own.
"""
