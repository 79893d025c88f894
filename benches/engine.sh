#!/bin/sh
# The engine alone: an array of five memory members, load, workers and control on the same CPUs.
#
#   benches/engine.sh [CPUS] [SIZES]      CPUs default to 0, sizes to 4k,16k,64k,256k,1m
#
# Environment: ROUNDS (default 3) runs of everything, of which the median is printed as CSV; RUNTIME (default 2) seconds a row;
# COUNTS (default 1) values of group_thread_cnt. Needs nothing but Rust and 1.5 GiB of free memory; no root.
set -eu
cd "$(dirname "$0")/.."
cpus=${1:-0}
sizes=${2:-4k,16k,64k,256k,1m}
cargo build --release --quiet -p etherraid
etherraid=${CARGO_TARGET_DIR:-target}/release/etherraid
out=$(mktemp)
trap 'rm -f "$out"' EXIT
for round in $(seq "${ROUNDS:-3}"); do
    for mode in randwrite randread write read; do
        echo "round $round: $mode" >&2
        "$etherraid" bench $mode --members 'mem:256M*5' --cpus "$cpus" --bs "$sizes" \
            --group-thread-cnt "${COUNTS:-1}" --runtime "${RUNTIME:-2}" --csv >> "$out"
    done
done
awk -f benches/middle.awk -f benches/median.awk "$out"
