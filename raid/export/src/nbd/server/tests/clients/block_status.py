# Metadata contexts: listed, chosen, asked for; and what libnbd of this version knows of extended headers.
SIZE = 16 << 20

h = nbd.NBD()
h.set_opt_mode(True)
h.add_meta_context("base:allocation")
h.connect_unix(path)
names = []
h.opt_list_meta_context(lambda name: names.append(name))
assert names == ["base:allocation"], names
h.opt_go()
assert h.can_meta_context("base:allocation")
assert h.can_cache() and h.can_df()

def status(offset, count, flags=0):
    seen = []
    h.block_status(count, offset, lambda name, at, entries, error: seen.append((name, at, list(entries))), flags)
    return seen

for count in (512, 1 << 20, SIZE):
    for flags in (0, nbd.CMD_FLAG_REQ_ONE):
        assert status(0, count, flags) == [("base:allocation", 0, [count, 0])], (count, flags)
assert status(SIZE - 512, 512) == [("base:allocation", SIZE - 512, [512, 0])]
h.cache(SIZE, 0)
h.shutdown()

# One that has chosen no context is refused.
h = nbd.NBD()
h.set_strict_mode(0)
h.connect_uri(uri)
assert not h.can_meta_context("base:allocation")
try:
    h.block_status(512, 0, lambda *args: 0)
    raise SystemExit("block status without a context was accepted")
except nbd.Error:
    pass
h.shutdown()

if hasattr(h, "set_request_extended_headers"):
    for wanted in (True, False):
        h = nbd.NBD()
        h.set_request_extended_headers(wanted)
        h.add_meta_context("base:allocation")
        h.connect_uri(uri)
        assert h.get_extended_headers_negotiated() == wanted
        seen = []
        h.block_status_64(SIZE, 0, lambda name, at, entries, error: seen.append((name, at, list(entries))))
        assert seen == [("base:allocation", 0, [(SIZE, 0)])], seen
        h.shutdown()
else:
    print("libnbd %s knows no extended headers" % h.get_version())
