"""Everything that knows Atropos: the environment class, the scheduler, scored groups."""
