# Median of each figure over the rounds of a bench: reads the CSV of several runs, prints one CSV.
#
# Rows with the same mode, bs, group_thread_cnt and qd (columns 1 to 4) are rounds of one row; order is that of the first round.
# errors are summed, so that none is lost.

BEGIN { FS = OFS = "," }

$1 == "mode" {
    for (i = 1; i <= NF; i++) if ($i == "errors") errors = i
    if (!header++) print
    next
}

{
    key = $1 FS $2 FS $3 FS $4
    if (!(key in rounds)) order[++rows] = key
    round = ++rounds[key]
    columns = NF
    for (i = 5; i <= NF; i++) figure[key, i, round] = $i
}

function median(key, column, count,    i, value, values) {
    for (i = 1; i <= count; i++) {
        value = figure[key, column, i]
        if (value == "") return ""
        values[i] = value + 0
    }
    return middle(values, count)
}

function sum(key, column, count,    i, total) {
    for (i = 1; i <= count; i++) total += figure[key, column, i]
    return total
}

END {
    for (row = 1; row <= rows; row++) {
        key = order[row]
        line = key
        for (i = 5; i <= columns; i++) line = line OFS (i == errors ? sum(key, i, rounds[key]) : median(key, i, rounds[key]))
        print line
    }
}
