#!/bin/sh
# The llm command line tool as a coder of one file: no agent, one question. Arguments: its program by an absolute path,
# the file.
set -eu
"$1" --model gpt-4o-mini --no-stream --no-log --extract-last \
    --system 'Reply with the whole corrected file in one code block.' "$KOKUBAN_PROMPT

The file $2:

$(cat "$2")" >"$HOME/answer"
cp "$HOME/answer" "$2"
