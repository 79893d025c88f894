"""A file system with one file, `disk`, that answers EIO on demand: eio_disk.py DIRECTORY SIZE, mounted on DIRECTORY/fuse.

While DIRECTORY/read-errors exists, what lies from 4 MiB on for 128 KiB cannot be read until it is written anew. While DIRECTORY/write-errors exists
nothing can be written. Speaks the kernel's FUSE protocol (linux/fuse.h, version 7.31) over /dev/fuse. Ends when it is unmounted.
"""
import ctypes
import errno
import os
import struct
import sys

DIRECTORY, SIZE = sys.argv[1], int(sys.argv[2])
BAD_FROM, BAD_END = 4 << 20, (4 << 20) + (128 << 10)
LOOKUP, FORGET, GETATTR, SETATTR, OPEN, READ, WRITE, STATFS = 1, 2, 3, 4, 14, 15, 16, 17
RELEASE, FSYNC, FLUSH, INIT, OPENDIR, RELEASEDIR = 18, 20, 25, 26, 27, 29
ROOT, DISK = 1, 2
WRITE_MAX = 1 << 20

data = bytearray(SIZE)
# Sectors that were written since they went bad.
mended = set()


def told(name):
    return os.path.exists(os.path.join(DIRECTORY, name))


def attributes(node):
    mode, size = (0o100600, SIZE) if node == DISK else (0o040700, 0)
    return struct.pack("<6Q3I7I", node, size, size // 512, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


def sectors(at, size):
    return range(max(at, BAD_FROM) // 512, (min(at + size, BAD_END) + 511) // 512)


def read(body):
    _, at, size = struct.unpack_from("<QQI", body)
    if told("read-errors") and any(sector not in mended for sector in sectors(at, size)):
        return errno.EIO, b""
    return 0, bytes(data[at : at + size])


def write(body):
    _, at, size = struct.unpack_from("<QQI", body)
    if told("write-errors"):
        return errno.EIO, b""
    data[at : at + size] = body[40 : 40 + size]
    if told("read-errors"):
        mended.update(sectors(at, size))
    return 0, struct.pack("<II", size, 0)


def answer(opcode, node, body):
    """Error number and body; None when no answer is wanted."""
    if opcode == INIT:
        major, minor, readahead, _ = struct.unpack_from("<4I", body)
        return 0, struct.pack("<4IHHIIHHI7I", 7, min(minor, 31), readahead, 0, 16, 12, WRITE_MAX, 1, 256, 0, 0, *[0] * 7)
    if opcode == FORGET:
        return None
    if opcode == LOOKUP:
        if body.rstrip(b"\0") != b"disk":
            return errno.ENOENT, b""
        return 0, struct.pack("<4Q2I", DISK, 0, 3600, 3600, 0, 0) + attributes(DISK)
    if opcode in (GETATTR, SETATTR):
        return 0, struct.pack("<Q2I", 3600, 0, 0) + attributes(node)
    if opcode in (OPEN, OPENDIR):
        # Direct: what is read comes from here each time.
        return 0, struct.pack("<Q2I", 0, 1 if opcode == OPEN else 0, 0)
    if opcode == READ:
        return read(body)
    if opcode == WRITE:
        return write(body)
    if opcode in (RELEASE, RELEASEDIR, FLUSH, FSYNC):
        return 0, b""
    return errno.ENOSYS, b""


def main():
    fuse = os.open("/dev/fuse", os.O_RDWR)
    at = os.path.join(DIRECTORY, "fuse")
    os.mkdir(at)
    options = f"fd={fuse},rootmode=40000,user_id=0,group_id=0"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"eio", at.encode(), b"fuse", 0, options.encode()) != 0:
        sys.exit(f"mount: {os.strerror(ctypes.get_errno())}")
    print("mounted", flush=True)
    while True:
        try:
            request = os.read(fuse, WRITE_MAX + (1 << 16))
        except OSError as error:
            if error.errno == errno.ENODEV:
                return
            if error.errno in (errno.EINTR, errno.ENOENT):
                continue
            raise
        _, opcode, unique, node = struct.unpack_from("<IIQQ", request)
        reply = answer(opcode, node, request[40:])
        if reply is not None:
            number, body = reply
            os.write(fuse, struct.pack("<IiQ", 16 + len(body), -number, unique) + body)


main()
