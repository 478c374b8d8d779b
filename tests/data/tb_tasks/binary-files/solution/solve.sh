#!/usr/bin/env python3
from pathlib import Path

Path("reversed.bin").write_bytes(Path("data.bin").read_bytes()[::-1])
