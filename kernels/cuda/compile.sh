#!/bin/sh
# compile.sh LOG COMMAND... - runs the compiler; what it says goes to LOG, and is shown on a failure.
log=$1
shift
if ! "$@" >"$log" 2>&1; then
    cat "$log"
    rm -f "$log"
    exit 1
fi
