"""The load and the samples of benches/paths.sh: NBD socket, seconds of a phase, command that cuts, command that mends."""
import json
import subprocess
import sys
import time

socket, phase, cut, mend = sys.argv[1], float(sys.argv[2]), sys.argv[3], sys.argv[4]
STEP = 0.02
fio = subprocess.Popen(
    ["fio", "--name=job", "--ioengine=nbd", f"--uri=nbd+unix:///?socket={socket}", "--rw=randrw", "--bs=16k", "--iodepth=32",
     "--size=100M", "--time_based", f"--runtime={3 * phase + 1}", "--output-format=json"],
    stdout=subprocess.PIPE, text=True)


def received(n):
    with open(f"/sys/class/net/eth{n}/statistics/rx_bytes") as file:
        return int(file.read())


samples = []
last = [received(1), received(2)]
start = before = time.monotonic()
events = [(1 + phase, "cut", cut), (1 + 2 * phase, "mend", mend)]
marks = {}
while before - start < 1 + 3 * phase - 0.2:
    if events and before - start >= events[0][0]:
        _, name, command = events.pop(0)
        marks[name] = time.monotonic() - start
        subprocess.run(command.split(), check=True)
    time.sleep(STEP)
    now, counts = time.monotonic(), [received(1), received(2)]
    samples.append((now - start, [(new - old) / (now - before) for new, old in zip(counts, last)]))
    last, before = counts, now


def median(which, begin, end):
    rates = sorted(rates[which] for at, rates in samples if begin <= at < end)
    return rates[len(rates) // 2]


def reaches(which, begin, rate):
    """Until a rate is reached, as the mean of three samples from then on; in ms."""
    later = [(at, rates[which]) for at, rates in samples if at >= begin]
    for index in range(len(later) - 2):
        if sum(rate for _, rate in later[index:index + 3]) / 3 >= rate:
            return round(1000 * (later[index][0] - begin))
    return None


alone = median(0, marks["cut"] + phase / 2, marks["mend"])
both = median(1, 1, marks["cut"])
again = median(1, marks["mend"] + 2, marks["mend"] + phase)
printed = fio.communicate()[0]
# Notes may stand before it.
job = json.loads(printed[printed.index("{"):])["jobs"][0]
longest = max(job[kind]["clat_ns"]["max"] for kind in ("read", "write"))
print(f"{cut}: longest request {longest / 1e6:.0f} ms, errors {job['error']}, first path alone {alone / 1e6:.0f} MB/s, "
      f"90 % of that {reaches(0, marks['cut'], 0.9 * alone)} ms after the cut; second path {both / 1e6:.0f} MB/s, "
      f"10 % of that {reaches(1, marks['mend'], 0.1 * both)} ms after its return, {again / 1e6:.0f} MB/s 2 s later")
