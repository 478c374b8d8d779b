#!/bin/bash
# reward.json holds the share of right lines; reward.txt says the opposite and must not count.
right=$(grep -cxE 'alpha|beta|gamma|delta' greek || true)
python3 -c "import json; print(json.dumps({'reward': ${right:-0} / 4, 'lines': ${right:-0}}))" \
  > /logs/verifier/reward.json
if [ "$right" = 4 ]; then echo 0; else echo 1; fi > /logs/verifier/reward.txt
exit 3
