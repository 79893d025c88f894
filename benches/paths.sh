#!/bin/sh
# One of two paths is cut under load and comes back: an array over three devices of `etherraid shelf`, which is reached over two switches (bridges);
# fio reads and writes; the second path is cut silently (its port leaves the switch), and in a second run by pulling the cable.
#
#   benches/paths.sh [SECONDS]            length of each phase: before, cut, after; default 3
#
# Prints a line a run: the longest request, errors, how long after the cut the first path carries 0.9 of what it carries while it is alone, how
# long after its return the second carries 0.1 of what it did before, and what it carries 2 s later. Rates are those of the interfaces, over 20 ms. Needs root, iproute2, fio,
# python3, Rust, and 200 MiB in /dev/shm. Leaves nothing behind.
set -eu
cd "$(dirname "$0")/.."
etherraid=${CARGO_TARGET_DIR:-target}/release/etherraid
if [ -z "${IN_NAMESPACE:-}" ]; then
    cargo build --release --quiet -p etherraid
    IN_NAMESPACE=1 exec unshare --net --mount -- "$0" "$@"
fi
mount -t sysfs none /sys
phase=${1:-3}
dir=$(mktemp -d /dev/shm/etherraid-paths.XXXXXX)
shelf=
array=
trap '[ -z "$array" ] || kill "$array"; [ -z "$shelf" ] || kill "$shelf"; wait; rm -rf "$dir"' EXIT
ip link set lo up
for n in 1 2; do
    ip link add dev b$n mtu 9000 type bridge stp_state 0 forward_delay 0 mcast_snooping 0
    for end in eth disks; do
        ip link add dev $end$n mtu 9000 type veth peer name $end$n-sw mtu 9000
        ip link set $end$n-sw master b$n up
        ip link set $end$n up
    done
    ip link set b$n up
done
until_ready() {
    touch "$1"
    until grep -q '^ready' "$1"; do
        kill -0 "$2"
        sleep 0.05
    done
}
truncate -s 64M "$dir/0" "$dir/1" "$dir/2"
"$etherraid" shelf -i disks1 -i disks2 -d "1.0=$dir/0" -d "1.1=$dir/1" -d "1.2=$dir/2" > "$dir/shelf" &
shelf=$!
until_ready "$dir/shelf" $shelf
"$etherraid" create paths -l 5 -n 3 --assume-clean -i eth1 e1.0 e1.1 e1.2 > /dev/null
"$etherraid" run paths -i eth1 -i eth2 e1.0 e1.1 e1.2 --nbd "unix:$dir/nbd" --control "$dir/control" --set aoe_frame_lifetime=200 \
    > "$dir/array" 2> "$dir/log" &
array=$!
until_ready "$dir/array" $array
sleep 1
for cut in 'ip link set disks2-sw nomaster|ip link set disks2-sw master b2' 'ip link set eth2-sw down|ip link set eth2-sw up'; do
    python3 benches/paths.py "$dir/nbd" "$phase" "${cut%|*}" "${cut#*|}"
done
