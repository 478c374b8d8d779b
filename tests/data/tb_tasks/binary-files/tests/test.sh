#!/bin/bash
if cmp reversed.bin /tests/expected.bin; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
