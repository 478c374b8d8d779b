#!/bin/bash
found=$(curl -s file:///app/root)
if [ "$found" = 42 ]; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
