#!/usr/bin/env bash
# Runs the benchmark with its default settings; all arguments are passed on, e.g.
#   bash run_eval.sh --openai.model_name NAME --env.task_filter difficulty=easy
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
exec "${PYTHON:-python3}" "$here/tblite_env.py" evaluate --config "$here/default.yaml" "$@"
