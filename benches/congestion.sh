#!/bin/sh
# Congestion on a real network: four shelves behind one slow, shallow switch port, and four initiators before one; clean cables; cables that lose frames.
#
#   benches/congestion.sh [RUNTIME [ROUNDS]]       seconds a row, default 2; rounds of all rows, default 3
#
# A namespace has a bridge as the switch; a host is a namespace behind one of its ports. The slow port is a tbf of 800 Mbit/s with a queue of 80 KB. Rows that are compared
# take turns. Prints a line of CSV for each case, control and window, see congestion.awk. Needs root, iproute2, jq and Rust. Leaves nothing behind.
set -eu
cd "$(dirname "$0")/.."
runtime=${1:-2} rounds=${2:-3}
cargo build --release --quiet -p etherraid
etherraid=${CARGO_TARGET_DIR:-target}/release/etherraid
[ -n "${IN_NAMESPACE:-}" ] || IN_NAMESPACE=1 exec unshare --net --mount -- "$0" "$@"
mount -t tmpfs tmpfs /run
dir=$(mktemp -d /run/congestion.XXXXXX)
children=
# shellcheck disable=SC2086 # a list of process ids
trap 'for child in $children; do kill "$child" || true; done; wait' EXIT

# host NAME: a namespace NAME whose eth0 is behind port p-NAME.
host() {
    ip netns add "$1"
    ip link add dev "p-$1" mtu 9000 type veth peer name eth0 mtu 9000 netns "$1"
    ip link set "p-$1" master switch
    ip link set "p-$1" up
    ip -n "$1" link set eth0 up
}
ip link add dev switch mtu 9000 type bridge stp_state 0 forward_delay 0 mcast_snooping 0
ip link set switch up
for name in s1 s2 s3 s4 h1 h2 h3 h4; do host $name; done

# shelf HOST ADDRESS.. [OPTION..]: serves 64 MiB at each address until the next case.
shelf() {
    name=$1 devices=
    shift
    while [ $# -gt 0 ] && [ "${1#-}" = "$1" ]; do
        head -c 64M /dev/zero > "$dir/$1"
        devices="$devices -d $1=$dir/$1"
        shift
    done
    # shellcheck disable=SC2086 # a list of options
    ip netns exec "$name" "$etherraid" shelf -i eth0 $devices -b 64 "$@" > "$dir/$name.ready" 2>&1 &
    children="$children $!"
    until grep -qs '^ready' "$dir/$name.ready"; do kill -0 $!; sleep 0.05; done
}

# load CASE HOST MODE DEVICE CONTROL WINDOW [LOSS]: 8 KiB at a time, 64 outstanding.
load() {
    ip netns exec "$2" "$etherraid" bench "$3" -i eth0 --device "e$4" --bs 8k --qd 64 --runtime "$runtime" --overwrite \
        --cpus "${CPUS:-0}" --set "aoe_congestion=$5" --set "aoe_window=$6" --json |
        jq -r --arg case "$1" --arg control "$5" --arg window "$6" --arg loss "${7:-0}" --arg round "$round" \
            '.[] | [$case, $control, $window, .mode, $loss, $round, .mb_per_s, .iops, .p999_us, .retransmits, .errors] | map(tostring) | join(",")' \
            >> "$dir/rows"
}

# together CASE CONTROL WINDOW: four at once, as the case says.
together() {
    pids=
    for n in 1 2 3 4; do
        case $1 in
        shelves) load "$1" h1 randread "$n.0" "$2" "$3" & ;;
        initiators) load "$1" "h$n" randwrite "1.$n" "$2" "$3" & ;;
        esac
        pids="$pids $!"
    done
    for pid in $pids; do wait "$pid"; done
}

# shared CASE: four share a slow port, with sticky and with fixed windows.
shared() {
    for round in $(seq "$rounds"); do
        together "$1" 0 64
        for window in 1 2 3; do together "$1" 1 $window; done
    done
}

stop() {
    for child in $children; do kill "$child"; wait "$child" || true; done
    children=
}

slow() { tc qdisc replace dev "$1" root tbf rate 800mbit burst 16kb limit 80000; }

for n in 1 2 3 4; do shelf "s$n" "$n.0"; done
slow p-h1
shared shelves
tc qdisc del dev p-h1 root
for round in $(seq "$rounds"); do
    for window in 16 32 64; do
        load "clean $window" h2 randread 1.0 0 64
        load "clean $window" h2 randread 1.0 1 $window
    done
done
stop
shelf s1 1.1 1.2 1.3 1.4
slow p-s1
shared initiators
tc qdisc del dev p-s1 root
stop
shelf s1 1.0
shelf s2 2.0 --fault loss=0.01,seed=1
shelf s3 3.0 --fault loss=0.05,seed=1
for round in $(seq "$rounds"); do
    for mode in randread randwrite; do
        load lossy h2 $mode 1.0 0 64
        load lossy h2 $mode 2.0 0 64 1%
        load lossy h2 $mode 3.0 0 64 5%
    done
done
stop
awk -f benches/middle.awk -f benches/congestion.awk -v "runtime=$runtime" -v outstanding=$((64 * 8192)) "$dir/rows"
