# Medians over the rounds of benches/limit.sh: reads the CSV of `etherraid bench --limit` with `ours,` before each line, and that of `md` with
# `md,`; prints a line a size with ours, the bare loop, md, and the ratios of each round's pair.

BEGIN { FS = OFS = "," }

$2 == "mode" {
    for (i = 2; i <= NF; i++) column[$1, $i] = i
    next
}

$1 == "ours" {
    size = $column["ours", "bs"]
    if (!(size in rounds)) order[++sizes] = size
    round = ++rounds[size]
    ours[size, round] = $column["ours", "mb_per_s"]
    limit[size, round] = $column["ours", "limit_mb_per_s"]
    of_limit[size, round] = $column["ours", "limit_ratio"]
    errors[size] += $column["ours", "errors"]
}

$1 == "md" {
    size = $column["md", "bs"]
    round = ++md_rounds[size]
    md[size, round] = $column["md", "mb_per_s"]
    of_md[size, round] = ours[size, round] / md[size, round]
}

function median(figures, size, count,    i, values) {
    for (i = 1; i <= count; i++) values[i] = figures[size, i] + 0
    return middle(values, count)
}

END {
    print "bs", "mb_per_s", "limit_mb_per_s", "md_mb_per_s", "of_limit", "of_md", "errors"
    for (i = 1; i <= sizes; i++) {
        size = order[i]
        n = rounds[size]
        printf "%s,%.0f,%.0f,%.0f,%.2f,%.1f,%d\n", size, median(ours, size, n), median(limit, size, n), median(md, size, n), \
            median(of_limit, size, n), median(of_md, size, n), errors[size]
    }
}
