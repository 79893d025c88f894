#!/bin/sh
# How near the engine is to its limit, and how far above Linux: random writes to an array of five memory members, a bare loop that does only their
# memory work, and Linux's md over five ram disks in a kernel that runs as a process; all three on the same CPU, in turn.
#
#   benches/limit.sh [SIZES]              sizes default to 4k,16k,64k,256k,1m
#
# Environment: ROUNDS (default 3) runs of everything, of which the median is printed as CSV; RUNTIME (default 1) seconds a run; CPU (0); QD (128);
# MODE (randwrite); PREFIX, a command to start all three with, such as 'chrt -r 5' on a machine with other work.
# Needs root, 4 GiB of free memory, Rust, util-linux, debootstrap and, the first time, a Debian mirror.
set -eu
cd "$(dirname "$0")/.."
sizes=${1:-4k,16k,64k,256k,1m}
cpu=${CPU:-0}
export QD="${QD:-128}" RUNTIME="${RUNTIME:-1}"
cargo build --release --quiet -p etherraid -p etherraid-benches
bin=${CARGO_TARGET_DIR:-target}/release
out=$(mktemp)
trap 'rm -f "$out"' EXIT
for round in $(seq "${ROUNDS:-3}"); do
    for size in $(echo "$sizes" | tr , ' '); do
        echo "round $round: $size" >&2
        # shellcheck disable=SC2086 # a command of several words
        ${PREFIX:-} "$bin/etherraid" bench "${MODE:-randwrite}" --members 'mem:256M*5' -c 64K --cpus "$cpu" --qd "$QD" \
            --bs "$size" --runtime "$RUNTIME" --limit --csv | sed 's/^/ours,/' >> "$out"
        # shellcheck disable=SC2086
        ${PREFIX:-} taskset -c "$cpu" "$bin/md" "${MODE:-randwrite}" "$size" | sed 's/^/md,/' >> "$out"
    done
done
awk -f benches/middle.awk -f benches/limit.awk "$out"
