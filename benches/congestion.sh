#!/bin/sh
# Congestion on a real network: four shelves behind one slow, shallow switch port, and four initiators before one; clean cables; cables that lose frames.
#
#   benches/congestion.sh [RUNTIME]       seconds a row, default 3
#
# A namespace has a bridge as the switch; a host is a namespace behind one of its ports. The slow port is a tbf of 800 Mbit/s with a queue of 80 KB. Prints a line of
# CSV for each initiator: case, congestion control, window, then mode, MB/s, requests per second, p50, p99 and p99.9 in us, frames sent again, errors. Needs root, iproute2,
# jq and Rust. Leaves nothing behind.
set -eu
cd "$(dirname "$0")/.."
runtime=${1:-3}
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
        truncate -s 64M "$dir/$1"
        devices="$devices -d $1=$dir/$1"
        shift
    done
    # shellcheck disable=SC2086 # a list of options
    ip netns exec "$name" "$etherraid" shelf -i eth0 $devices -b 64 "$@" > "$dir/$name.ready" 2>&1 &
    children="$children $!"
    until grep -q '^ready' "$dir/$name.ready"; do kill -0 $!; sleep 0.05; done
}

# load CASE HOST MODE DEVICE CONTROL WINDOW
load() {
    ip netns exec "$2" "$etherraid" bench "$3" -i eth0 --device "e$4" --bs 8k --qd 64 --runtime "$runtime" --overwrite \
        --cpus "${CPUS:-0}" --set "aoe_congestion=$5" --set "aoe_window=$6" --json |
        jq -r --arg case "$1" --arg control "$5" --arg window "$6" \
            '.[] | [$case, $control, $window, .mode, .mb_per_s, .iops, .p50_us, .p99_us, .p999_us, .retransmits, .errors] | @csv'
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

stop() {
    for child in $children; do kill "$child"; wait "$child" || true; done
    children=
}

slow() { tc qdisc replace dev "$1" root tbf rate 800mbit burst 16kb limit 80000; }

echo "case,control,window,mode,mb_per_s,iops,p50_us,p99_us,p999_us,retransmits,errors"
for n in 1 2 3 4; do shelf "s$n" "$n.0"; done
slow p-h1
together shelves 0 64
for window in 1 2 3 8; do together shelves 1 $window; done
tc qdisc del dev p-h1 root
load clean h2 randread 1.0 0 64
for window in 16 32 64; do load clean h2 randread 1.0 1 $window; done
stop
shelf s1 1.1 1.2 1.3 1.4
slow p-s1
together initiators 0 64
for window in 1 2 3 8; do together initiators 1 $window; done
tc qdisc del dev p-s1 root
stop
for loss in 0.01 0.05; do
    shelf s2 2.0 --fault "loss=$loss,seed=1"
    for mode in randread randwrite; do load "loss $loss" h2 $mode 2.0 0 64; done
    stop
done
