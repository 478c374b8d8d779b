#!/bin/bash
if [ "$(curl -s http://127.0.0.1:8077/page)" = "it works" ]; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
