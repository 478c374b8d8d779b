#!/bin/sh
nohup python3 -m http.server 8077 --directory /app/public > /dev/null 2>&1 &
for _ in $(seq 100); do
  curl -s http://127.0.0.1:8077/page > /dev/null && exit 0
  sleep 0.1
done
exit 1
