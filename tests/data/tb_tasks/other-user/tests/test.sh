#!/bin/bash
if [ "$(cat me)" = worker ] && [ "$(stat -c %U me)" = worker ]; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
