#!/bin/sh
# One AoE device without RAID: `etherraid shelf` on CPU 1 serves a file on tmpfs, `etherraid bench --device` on CPU 0 loads it, over a veth
# pair with MTU 9000 in a network namespace of its own.
#
#   benches/device.sh [SIZES]             sizes default to 4k,8k,64k,256k,1m
#
# Environment: ROUNDS (default 3) runs of everything, of which the median is printed as CSV; RUNTIME (default 2) seconds a row; LOAD_CPU (0) and
# SHELF_CPU (1). Needs root, iproute2, util-linux, Rust and 300 MiB in /dev/shm. Leaves nothing behind.
set -eu
cd "$(dirname "$0")/.."
etherraid=${CARGO_TARGET_DIR:-target}/release/etherraid
if [ -z "${IN_NAMESPACE:-}" ]; then
    cargo build --release --quiet -p etherraid
    IN_NAMESPACE=1 exec unshare --net -- "$0" "$@"
fi
sizes=${1:-4k,8k,64k,256k,1m}
out=$(mktemp)
disk=$(mktemp /dev/shm/etherraid-bench.XXXXXX)
shelf=
trap '[ -z "$shelf" ] || kill "$shelf"; wait; rm -f "$disk" "$out" "$out.shelf"' EXIT
head -c 256M /dev/zero > "$disk"
ip link add dev er-load mtu 9000 type veth peer name er-shelf mtu 9000
ip link set er-load up
ip link set er-shelf up
taskset -c "${SHELF_CPU:-1}" "$etherraid" shelf -i er-shelf -d "1.1=$disk" > "$out.shelf" &
shelf=$!
until grep -q '^ready' "$out.shelf"; do
    kill -0 "$shelf"
    sleep 0.05
done
for round in $(seq "${ROUNDS:-3}"); do
    for mode in read randread write randwrite; do
        echo "round $round: $mode" >&2
        "$etherraid" bench $mode --device e1.1 -i er-load --cpus "${LOAD_CPU:-0}" --bs "$sizes" --runtime "${RUNTIME:-2}" \
            --overwrite --csv >> "$out"
    done
done
awk -f benches/middle.awk -f benches/median.awk "$out"
