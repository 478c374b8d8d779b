#!/bin/bash
if [ "$PWD" = "/" ]; then
  echo "wrong working directory"
  exit 1
fi
if [ "$PWD" = /srv/people/here ] && [ "$(tr '\n' ' ' < names)" = "anton bela mira zoe " ]; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
