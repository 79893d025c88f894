# Random requests, up to 64 in flight on two connections, against a model; ranges that overlap are never in flight together.
random.seed(1)
SIZE = 16 << 20
SLOT = 128 << 10
model = bytearray(SIZE)
handles = []
for structured in (True, False):
    h = nbd.NBD()
    h.set_request_structured_replies(structured)
    h.connect_uri(uri)
    assert h.can_multi_conn()
    handles.append(h)

busy = {}
done = 0
started = 0
while done < 3000:
    while started < 3000 and len(busy) < 64:
        slot = random.choice([s for s in range(SIZE // SLOT) if s not in busy])
        offset = slot * SLOT + random.randrange(64) * 512
        count = random.randrange(1, 64) * 512
        which = random.randrange(4)
        h = random.choice(handles)
        if which == 0:
            data = os.urandom(count)
            cookie = h.aio_pwrite(nbd.Buffer.from_bytearray(bytearray(data)), offset)
            model[offset : offset + count] = data
            buffer = None
        elif which == 1:
            cookie = h.aio_zero(count, offset, flags=random.choice([0, nbd.CMD_FLAG_FUA]))
            model[offset : offset + count] = bytes(count)
            buffer = None
        else:
            buffer = nbd.Buffer(count)
            cookie = h.aio_pread(buffer, offset)
        busy[slot] = (h, cookie, offset, count, buffer)
        started += 1
    for h in handles:
        h.poll(1)
    for slot, (h, cookie, offset, count, buffer) in list(busy.items()):
        if h.aio_command_completed(cookie):
            if buffer is not None:
                assert buffer.to_bytearray() == model[offset : offset + count], (offset, count)
            del busy[slot]
            done += 1
for h in handles:
    h.flush()
    assert h.pread(SIZE, 0) == model
    h.shutdown()
