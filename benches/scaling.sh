#!/bin/sh
# What a random write of 4 KiB costs as worker groups become more, by count: hand-overs, contended atomics and, by valgrind's callgrind, instructions, all on one thread.
# Every group has a front end of its own that keeps 64 writes outstanding.
#
#   benches/scaling.sh [GROUPS]           numbers of groups, default 2,4,8,16; growth is against the first
#
# Environment: WRITES (20000). Prints CSV; the exit status is 1 if anything grew by more than 10 %. As root it installs valgrind on Debian if there is none.
set -eu
cd "$(dirname "$0")/.."
groups=${1:-2,4,8,16}
writes=${WRITES:-20000}
command -v valgrind > /dev/null || apt-get install -y valgrind > /dev/null
cargo build --release --quiet -p etherraid-benches --bin scaling
bin=${CARGO_TARGET_DIR:-target}/release/scaling
instructions() {
    valgrind --tool=callgrind --callgrind-out-file=/dev/null "$bin" "$1" "$2" 2>&1 > /dev/null | awk '/Collected/ { print $4 }'
}
for count in $(echo "$groups" | tr , ' '); do
    # The difference of two runs leaves out what is done once.
    once=$(instructions "$count" "$writes")
    twice=$(instructions "$count" $((2 * writes)))
    echo "$("$bin" "$count" "$writes"),$(((twice - once) / writes))"
done | awk -F, '
    BEGIN { print "groups,writes,handoffs_per_write,contended_per_write,instructions_per_write,handoffs_growth,instructions_growth" }
    NR == 1 { handoffs = $3; contended = $4; instructions = $5 }
    {
        printf "%s,%.3f,%.3f\n", $0, $3 / handoffs, $5 / instructions
        if ($3 > 1.1 * handoffs || $4 > 1.1 * contended || $5 > 1.1 * instructions) grew = 1
    }
    END { exit grew }'
