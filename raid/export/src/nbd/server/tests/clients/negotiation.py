# Options step by step, replies of both kinds, and the errors that a client is told.
import errno

h = nbd.NBD()
h.set_opt_mode(True)
h.connect_unix(path)
assert h.get_protocol() == "newstyle-fixed"
exports = []
h.opt_list(lambda name, description: exports.append(name))
assert exports == ["md0"], exports
h.set_export_name("wrong")
for step in (h.opt_info, h.opt_go):
    try:
        step()
        raise SystemExit("an unknown export was accepted")
    except nbd.Error as error:
        assert error.errnum == errno.ENOENT, error
h.set_export_name("md0")
h.set_full_info(True)
h.opt_info()
assert h.get_size() == 1 << 20
assert h.get_canonical_export_name() == "md0"
assert h.get_export_description() == "memory"
h.opt_go()
assert h.get_block_size(nbd.SIZE_MINIMUM) == 512
h.shutdown()

h = nbd.NBD()
h.set_opt_mode(True)
h.connect_unix(path)
h.opt_abort()

for structured in (True, False):
    h = nbd.NBD()
    h.set_request_structured_replies(structured)
    h.set_strict_mode(0)
    h.connect_uri(uri)
    assert h.get_structured_replies_negotiated() == structured
    h.pwrite(b"x" * 1024, 512)
    assert h.pread(2048, 0) == b"\0" * 512 + b"x" * 1024 + b"\0" * 512
    cases = [
        (errno.EINVAL, lambda: h.pread(512, 1 << 20)),
        (errno.EINVAL, lambda: h.pread(1024, (1 << 20) - 512)),
        (errno.EINVAL, lambda: h.pread(100, 0)),
        (errno.EINVAL, lambda: h.pread(512, 1)),
        (errno.ENOSPC, lambda: h.pwrite(b"y" * 512, 1 << 20)),
        (errno.EINVAL, lambda: h.pwrite(b"y" * 100, 0)),
        (errno.EINVAL, lambda: h.pwrite(b"y" * 512, 100)),
        (errno.ENOSPC, lambda: h.zero(512, 1 << 20)),
        (errno.EINVAL, lambda: h.trim(512, 1 << 20)),
        (errno.EINVAL, lambda: h.cache(512, 1 << 20)),
        (errno.EINVAL, lambda: h.zero(512, 0, nbd.CMD_FLAG_FAST_ZERO)),
        (errno.EINVAL, lambda: h.pread(33 << 20, 0)),
    ]
    for number, call in cases:
        try:
            call()
            raise SystemExit("request %d was accepted" % cases.index((number, call)))
        except nbd.Error as error:
            assert error.errnum == number, (number, error)
    h.cache(512, 0)
    # All of it left the stream in step.
    assert h.pread(1024, 512) == b"x" * 1024
    h.zero(512, 512, nbd.CMD_FLAG_NO_HOLE | nbd.CMD_FLAG_FUA)
    h.trim(512, 1024)
    h.flush()
    assert h.pread(2048, 0) == b"\0" * 2048
    h.shutdown()
