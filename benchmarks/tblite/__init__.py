"""``tblite``: 100 faster tasks whose scores follow those of Terminal-Bench 2."""
