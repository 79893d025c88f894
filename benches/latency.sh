#!/bin/sh
# One request at a time: what a request costs when nothing is there to share its way.
#
#   benches/latency.sh [CPUS] [SIZES]     CPUs default to 0,1, sizes to 4k,64k
#
# Environment: ROUNDS (default 3) runs of everything, of which the median is printed as CSV; RUNTIME (default 1) seconds a row; PREFIX as in limit.sh.
# Needs nothing but Rust and 1.5 GiB of free memory; no root. A load thread for each CPU has one request outstanding.
set -eu
cd "$(dirname "$0")/.."
cargo build --release --quiet -p etherraid
etherraid=${CARGO_TARGET_DIR:-target}/release/etherraid
out=$(mktemp)
trap 'rm -f "$out"' EXIT
for round in $(seq "${ROUNDS:-3}"); do
    for mode in randread randwrite; do
        echo "round $round: $mode" >&2
        # shellcheck disable=SC2086 # a command of several words
        ${PREFIX:-} "$etherraid" bench $mode --members 'mem:256M*5' -c 64K --qd 1 --cpus "${1:-0,1}" --bs "${2:-4k,64k}" \
            --runtime "${RUNTIME:-1}" --csv >> "$out"
    done
done
awk -f benches/middle.awk -f benches/median.awk "$out"
