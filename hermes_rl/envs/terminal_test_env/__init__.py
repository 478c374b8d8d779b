"""The bundled smoke test: write a small file in the home directory."""
