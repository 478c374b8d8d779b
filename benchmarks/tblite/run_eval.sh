#!/usr/bin/env bash
# Runs the benchmark with its default settings; all arguments are passed on, e.g.
#   bash run_eval.sh --openai.model_name NAME --env.task_filter difficulty=easy
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=${PYTHON:-python3}
if ! "$python" -Pc 'import importlib.util as u, sys; sys.exit(not u.find_spec("hermes_rl"))'; then
    echo "run_eval.sh: $python has no hermes_rl. Activate its environment, or set PYTHON." >&2
    exit 2
fi
exec "$python" "$here/tblite_env.py" evaluate --config "$here/default.yaml" "$@"
