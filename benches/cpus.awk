# Medians over the rounds of benches/cpus.sh: reads the CSV of `etherraid bench --limit` with the CPUs before each line, fewer CPUs first in
# each round; prints a line a size.

BEGIN { FS = OFS = "," }

$2 == "mode" {
    for (i = 2; i <= NF; i++) column[$i] = i
    next
}

{
    cpus = $1
    size = $column["bs"]
    if (first == "") first = cpus
    who = cpus == first ? "one" : "two"
    if (who == "one" && !(size in rounds)) order[++sizes] = size
    round = who == "one" ? ++rounds[size] : rounds[size]
    rate[who, size, round] = $column["mb_per_s"]
    bare[who, size, round] = $column["limit_mb_per_s"]
    request[who, size, round] = $column["member_request_sectors"]
    errors[size] += $column["errors"]
}

function median(what, size, count,    i, value, values) {
    for (i = 1; i <= count; i++) {
        if (what == "gain") value = rate["two", size, i] / rate["one", size, i]
        else if (what == "bare") value = bare["two", size, i] / bare["one", size, i]
        else if (what == "of") value = (rate["two", size, i] / rate["one", size, i]) / (bare["two", size, i] / bare["one", size, i])
        else if (what == "request") value = request["two", size, i] / request["one", size, i]
        else value = rate[what, size, i] + 0
        values[i] = value
    }
    return middle(values, count)
}

END {
    print "bs", "mb_per_s_one", "mb_per_s_two", "gain", "gain_of_bare_loop", "of_bare", "request_ratio", "errors"
    for (i = 1; i <= sizes; i++) {
        size = order[i]
        n = rounds[size]
        printf "%s,%.0f,%.0f,%.2f,%.2f,%.2f,%.2f,%d\n", size, median("one", size, n), median("two", size, n), median("gain", size, n), \
            median("bare", size, n), median("of", size, n), median("request", size, n), errors[size]
    }
}
