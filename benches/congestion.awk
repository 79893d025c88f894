# What benches/congestion.sh has measured, a line for each case: reads "case,control,window,mode,loss,round,mb_per_s,iops,p999_us,retransmits,errors", a line for each
# initiator of each round. MB/s of all initiators, the least of Jain's index, frames sent again in percent, and the worst 99.9th percentile as a multiple of what serving
# all outstanding requests in turn would take are medians over the rounds; errors are summed. `of_first` is MB/s as part of that of the table's first row with the same case and mode.
#
# -v runtime=SECONDS -v outstanding=BYTES (of one initiator)

BEGIN { FS = OFS = ","; print "case,control,window,mode,loss,mb_per_s,of_first,jain,resent_percent,p999_in_turns,errors" }

{
    key = $1 FS $2 FS $3 FS $4 FS $5
    if (!(key in rounds)) order[++rows] = key
    if ($6 > rounds[key]) rounds[key] = $6
    n[key, $6]++
    mb[key, $6] += $7; square[key, $6] += $7 * $7
    frames[key, $6] += $8 * runtime; again[key, $6] += $10
    if ($9 > worst[key, $6]) worst[key, $6] = $9
    errors[key] += $11
}

END {
    for (row = 1; row <= rows; row++) {
        key = order[row]
        count = rounds[key]
        for (i = 1; i <= count; i++) of[i] = mb[key, i]
        goodput = middle(of, count)
        for (i = 1; i <= count; i++) of[i] = square[key, i] ? mb[key, i] ^ 2 / (n[key, i] * square[key, i]) : 0
        jain = middle(of, count)
        for (i = 1; i <= count; i++) of[i] = 100 * again[key, i] / (frames[key, i] + again[key, i] + 1e-9)
        resent = middle(of, count)
        for (i = 1; i <= count; i++) of[i] = worst[key, i] * mb[key, i] / (n[key, i] * outstanding)
        turns = middle(of, count)
        split(key, field, FS)
        like = field[1] FS field[4]
        if (!(like in first)) first[like] = goodput
        printf "%s,%.1f,%.3f,%.3f,%.3f,%.2f,%d\n", key, goodput, goodput / (first[like] + 1e-9), jain, resent, turns, errors[key]
    }
}
