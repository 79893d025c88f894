# middle(values, count): the median of values[1] to values[count], of an even number the lower one. For the other files here, which are read after it.

function middle(values, count,    i, j, value, sorted) {
    for (i = 1; i <= count; i++) {
        value = values[i]
        for (j = i - 1; j > 0 && sorted[j] > value; j--) sorted[j + 1] = sorted[j]
        sorted[j + 1] = value
    }
    return sorted[int((count + 1) / 2)]
}
