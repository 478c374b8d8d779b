#!/bin/bash
if [ "$(cat shouted)" = "A QUIET WORD" ]; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
