#!/bin/bash
# The agent's own call must be dead by now; what it had done stands.
if [ "$(cat progress)" = first ] && ! pgrep -x sleep; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
