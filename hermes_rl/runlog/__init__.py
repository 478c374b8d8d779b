"""The append-only run directory: writer, reader, resume, exports, report."""
