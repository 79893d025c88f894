#!/bin/sh
# The wire at full speed: one AoE device that stores nothing, loaded by our initiator and by a plain recvmmsg/sendmmsg loop in turn; RAID5 over five such devices;
# and the same two with Linux's aoe driver and md in a kernel that runs as a process. `etherraid shelf` is on CPU 1, all else on CPU 0, over a veth pair
# with MTU 9000 in a network namespace of its own.
#
#   benches/wire.sh [SIZES]               sizes default to 4k,8k,64k
#
# Environment: ROUNDS (default 3) runs of everything, of which the median is printed as CSV; RUNTIME (default 1) seconds a run; LOAD_CPU (0) and SHELF_CPU (1);
# MODES ('read write'); LINUX (1; 0 leaves Linux out); SET, options such as '--set aoe_maxout=32'; PREFIX, a command to start all with, such as 'nice -n -20'.
# Needs root, iproute2, util-linux and Rust; with LINUX=1 what limit.sh needs, too. Leaves nothing behind.
#
# The first table is one of `etherraid bench --device --limit`; busy_us_per_op is what a request takes of both CPUs. The last row of the second table has as
# `of_quarter` what RAID5 reaches of a quarter of the device operations (the mean of reads and writes at 4k) that the same CPU makes: a random
# write of 4k is two reads and two writes.
set -eu
cd "$(dirname "$0")/.."
bin=${CARGO_TARGET_DIR:-target}/release
etherraid=$bin/etherraid
export ETHERRAID_BIN="$etherraid"
if [ -z "${IN_NAMESPACE:-}" ]; then
    cargo build --release --quiet -p etherraid -p etherraid-benches
    IN_NAMESPACE=1 exec unshare --net -- "$0" "$@"
fi
sizes=${1:-4k,8k,64k}
runtime=${RUNTIME:-1}
load=${LOAD_CPU:-0}
out=$(mktemp)
shelf=
trap '[ -z "$shelf" ] || kill "$shelf"; wait; rm -f "$out" "$out".*' EXIT
ip link add dev er-load mtu 9000 type veth peer name er-shelf mtu 9000
ip link set er-load up
ip link set er-shelf up
devices=$(for slot in 0 1 2 3 4; do printf ' -d 1.%d=null:1G' $slot; done)
# shellcheck disable=SC2086 # options, and a command of several words
${PREFIX:-} taskset -c "${SHELF_CPU:-1}" "$etherraid" shelf -i er-shelf $devices > "$out.shelf" &
shelf=$!
until grep -q '^ready: e1.4' "$out.shelf"; do
    kill -0 "$shelf"
    sleep 0.05
done
bench() {
    # shellcheck disable=SC2086
    ${PREFIX:-} "$etherraid" bench "$@" -i er-load --cpus "$load" --runtime "$runtime" --overwrite --csv ${SET:-}
}
for round in $(seq "${ROUNDS:-3}"); do
    for mode in ${MODES:-read write}; do
        echo "round $round: $mode" >&2
        bench "$mode" --device e1.0 --bs "$sizes" --limit >> "$out"
        bench "$mode" --device e1.0 --bs 4k --qd 1 --limit >> "$out.one"
    done
    echo "round $round: RAID5" >&2
    for mode in randread randwrite; do bench $mode --device e1.0 --bs 4k --qd 128 >> "$out.raid"; done
    bench randwrite -c 64K e1.0 e1.1 e1.2 e1.3 e1.4 --bs 4k --qd 128 >> "$out.raid"
done
awk -f benches/middle.awk -f benches/median.awk "$out" "$out.one"
awk -f benches/middle.awk -f benches/median.awk "$out.raid" | awk -F, '
    NR == 1 { for (i = 1; i <= NF; i++) if ($i == "iops") iops = i; print $0 ",of_quarter"; next }
    $3 == "" { sum += $iops; print $0 ","; next }
    { printf "%s,%.2f\n", $0, $iops / (sum / 2 / 4) }'
kill "$shelf"
wait "$shelf" || true
shelf=
[ "${LINUX:-1}" = 0 ] && exit
for round in $(seq "${ROUNDS:-3}"); do
    for mode in ${MODES:-read write}; do
        echo "round $round: Linux, $mode" >&2
        # shellcheck disable=SC2086
        SHELF_CPU="${SHELF_CPU:-1}" RUNTIME=$runtime ${PREFIX:-} taskset -c "$load" "$bin/aoe" "$mode" "$sizes" >> "$out.linux"
    done
    echo "round $round: Linux, RAID5" >&2
    # shellcheck disable=SC2086
    DEVICES=5 QD=128 SHELF_CPU="${SHELF_CPU:-1}" RUNTIME=$runtime ${PREFIX:-} taskset -c "$load" "$bin/aoe" randwrite 4k >> "$out.linux"
done
awk -f benches/middle.awk -f benches/median.awk "$out.linux"
