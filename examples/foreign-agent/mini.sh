#!/bin/sh
# mini-SWE-agent as a coder: the order in plain words is its task, and the model server of the step its model.
# Arguments: its program by an absolute path, then its own options.
set -eu
program=$1
shift
export MSWEA_CONFIGURED=true MSWEA_COST_TRACKING=ignore_errors LITELLM_LOCAL_MODEL_COST_MAP=True
exec "$program" --model openai/kokuban --yolo --exit-immediately --output "$HOME/trajectory.json" \
    --task "$KOKUBAN_PROMPT" "$@"
