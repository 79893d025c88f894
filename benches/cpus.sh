#!/bin/sh
# What the second CPU brings: random writes to an array of five memory members on one CPU and on two, in turn, beside the bare loop on the same.
#
#   benches/cpus.sh [SIZES]               sizes default to 4k,8k,..,1m
#
# Environment: ROUNDS (default 3) runs of everything, of which the median is printed as CSV; RUNTIME (default 1) seconds a run; ONE (0) and BOTH (0,1),
# the CPUs; QD (64); MODE (randwrite); PREFIX as in limit.sh. Needs nothing but Rust and 4 GiB of free memory; no root.
#
# of_bare is what ours gains over what the bare loop gains; request_ratio the mean member request on two CPUs over that on one.
set -eu
cd "$(dirname "$0")/.."
sizes=${1:-4k,8k,..,1m}
cargo build --release --quiet -p etherraid
etherraid=${CARGO_TARGET_DIR:-target}/release/etherraid
out=$(mktemp)
trap 'rm -f "$out"' EXIT
for round in $(seq "${ROUNDS:-3}"); do
    for cpus in "${ONE:-0}" "${BOTH:-0,1}"; do
        echo "round $round: CPU $cpus" >&2
        # shellcheck disable=SC2086 # a command of several words
        ${PREFIX:-} "$etherraid" bench "${MODE:-randwrite}" --members 'mem:256M*5' -c 64K --cpus "$cpus" --group-thread-cnt 1 \
            --qd "${QD:-64}" --bs "$sizes" --runtime "${RUNTIME:-1}" --limit --csv | sed "s/^/$(echo "$cpus" | tr , +),/" >> "$out"
    done
done
awk -f benches/middle.awk -f benches/cpus.awk "$out"
