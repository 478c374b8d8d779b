#!/bin/bash
set -e
cp /solution/count.py /tmp/count.py
python3 /tmp/count.py
