#!/bin/bash
if [ "$(cat lines)" = "$(wc -l < /etc/passwd)" ]; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
