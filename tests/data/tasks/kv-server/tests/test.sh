#!/bin/bash
url=http://127.0.0.1:8765
value="value-$RANDOM"
status() { curl -s -o /dev/null -w '%{http_code}' --max-time 5 "$@"; }
ok=1
curl -sf --max-time 5 -X PUT --data "$value" "$url/colour" >/dev/null || ok=0
[ "$(curl -sf --max-time 5 "$url/colour")" = "$value" ] || ok=0
[ "$(status "$url/unknown")" = 404 ] || ok=0
echo "$ok" > /logs/verifier/reward.txt
