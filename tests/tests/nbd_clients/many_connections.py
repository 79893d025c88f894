# Four connections to each address, all of one array: what one has written and flushed all others read, at once and after random requests
# of every kind, against a model. Block status and caching on the way, with extended headers where this libnbd knows them.
import os
import random
import sys

import nbd

random.seed(1)


def open_handle(uri, extended):
    handle = nbd.NBD()
    if hasattr(handle, "set_request_extended_headers"):
        handle.set_request_extended_headers(extended)
    handle.add_meta_context("base:allocation")
    handle.connect_uri(uri)
    assert handle.can_multi_conn() and handle.can_meta_context("base:allocation")
    if hasattr(handle, "get_extended_headers_negotiated"):
        assert handle.get_extended_headers_negotiated() == extended
    return handle


handles = [open_handle(uri, n % 2 == 0) for uri in sys.argv[1:] for n in range(4)]
size = handles[0].get_size()
assert all(handle.get_size() == size for handle in handles)
model = bytearray(handles[0].pread(16 << 20, 0))

SLOT = 256 << 10
busy = {}
done = started = 0
while done < 2000:
    while started < 2000 and len(busy) < 48:
        slot = random.choice([s for s in range(len(model) // SLOT) if s not in busy])
        offset = slot * SLOT + random.randrange(128) * 512
        count = random.randrange(1, 250) * 512
        handle = random.choice(handles)
        which = random.randrange(6)
        buffer = None
        if which < 2:
            data = os.urandom(count)
            buffer = nbd.Buffer.from_bytearray(bytearray(data))
            cookie = handle.aio_pwrite(buffer, offset, flags=random.choice([0, 0, nbd.CMD_FLAG_FUA]))
            model[offset : offset + count] = data
        elif which == 2:
            cookie = handle.aio_zero(count, offset)
            model[offset : offset + count] = bytes(count)
        elif which == 3:
            cookie = handle.aio_cache(count, offset)
        else:
            buffer = nbd.Buffer(count)
            if random.randrange(2):
                cookie = handle.aio_pread(buffer, offset)
            else:
                whole = lambda data, at, status, error, count=count: 0 if len(data) == count else 1 / 0
                cookie = handle.aio_pread_structured(buffer, offset, whole, flags=nbd.CMD_FLAG_DF)
        busy[slot] = (handle, cookie, offset, count, buffer, which)
        started += 1
    for handle in handles:
        handle.poll(1)
    for slot, (handle, cookie, offset, count, buffer, which) in list(busy.items()):
        if handle.aio_command_completed(cookie):
            if which > 3:
                assert buffer.to_bytearray() == model[offset : offset + count], (offset, count)
            del busy[slot]
            done += 1

handles[0].flush()
for handle in handles:
    assert handle.pread(len(model), 0) == model
    seen = []
    handle.block_status(size, 0, lambda name, at, entries, error: seen.append((name, at, list(entries))))
    assert seen == [("base:allocation", 0, [size, 0])], seen
    handle.shutdown()
print("all as expected, with libnbd", nbd.NBD().get_version())
