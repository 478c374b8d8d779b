#!/bin/bash
# As real verifiers do, with a package source that is out of reach.
curl -LsSf http://packages.invalid/install.sh | sh
if uvx pytest --ctrf /logs/verifier/ctrf.json /tests/test_outputs.py; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
