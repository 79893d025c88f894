#!/bin/sh
# The table of the kernel patch that gave md's raid5 its threads: 7 members, 8K chunk, stripe_cache_size 2048, group_thread_cnt 0 and several, random writes
# of 4k to 1m. The patch had 8 threads on 7 SSDs; here members are memory, and there may be two threads a CPU at most.
#
#   benches/patch.sh [COUNTS] [SIZES]     counts of threads per CPU default to 0,1,2, sizes to 4k,8k,..,1m
#
# Environment: ROUNDS (default 3) runs of everything, of which the median is printed as CSV; RUNTIME (default 1) seconds a row; QD (64); PREFIX as in
# limit.sh; MD (1: also Linux's md in a kernel that runs as a process, on one CPU, which needs what limit.sh needs).
set -eu
cd "$(dirname "$0")/.."
counts=${1:-0,1,2}
sizes=${2:-4k,8k,16k,32k,64k,128k,256k,512k,1m}
export RUNTIME="${RUNTIME:-1}"
cargo build --release --quiet -p etherraid -p etherraid-benches
bin=${CARGO_TARGET_DIR:-target}/release
out=$(mktemp)
trap 'rm -f "$out" "$out.md"' EXIT
for round in $(seq "${ROUNDS:-3}"); do
    echo "round $round" >&2
    # shellcheck disable=SC2086 # a command of several words
    ${PREFIX:-} "$bin/etherraid" bench randwrite --members 'mem:256M*7' -c 8K --set stripe_cache_size=2048 --qd "${QD:-64}" \
        --group-thread-cnt "$counts" --bs "$sizes" --runtime "$RUNTIME" --csv >> "$out"
    [ "${MD:-0}" = 0 ] || MEMBERS=7 CHUNK_KIB=8 STRIPE_CACHE=2048 QD="${QD:-64}" COUNTS=0,8 ${PREFIX:-} "$bin/md" randwrite "$sizes" >> "$out.md"
done
awk -f benches/middle.awk -f benches/median.awk "$out"
[ ! -s "$out.md" ] || awk -f benches/middle.awk -f benches/median.awk "$out.md"
