"""Open files, as the standard library knows them."""

import io
import os

_READ, _WRITE, _BOTH, _TRUNCATE, _CREATE, _NEW = 0, 1, 2, 4, 8, 16


def parse_mode(mode):
    """The options of a mode such as `"rb+"`, whether it is text, and the mode without `b` or `t`."""
    if not isinstance(mode, str) or set(mode) - set("rwaxbt+") or len(set(mode)) != len(mode):
        raise ValueError(f"invalid mode: {mode!r}")
    if "b" in mode and "t" in mode:
        raise ValueError("can't have text and binary mode at once")
    kinds = [kind for kind in "rwax" if kind in mode]
    if len(kinds) != 1:
        raise ValueError("must have exactly one of create/read/write/append mode")
    kind, both = kinds[0], "+" in mode
    options = _READ if kind == "r" and not both else _BOTH if both else _WRITE
    options |= {"r": 0, "w": _TRUNCATE | _CREATE, "a": _CREATE, "x": _NEW}[kind]
    return options, "b" not in mode, mode.replace("b", "").replace("t", "")


def as_bytes(data):
    """The bytes of an object that has some; of a number there are none."""
    return data if type(data) is bytes else bytes(memoryview(data))


class BufferedWriter(io.BufferedWriter):
    """A buffer whose flush reaches the servers."""

    def flush(self):
        super().flush()
        self.raw.flush()


class BufferedRandom(io.BufferedRandom):
    """A buffer whose flush reaches the servers."""

    def flush(self):
        super().flush()
        self.raw.flush()


class PandoFile(io.RawIOBase):
    """A file without a buffer: each call is one of the client's."""

    #: Size of the buffer that `open` puts before it, in bytes.
    BUFFER = 1 << 20

    #: The most that one call reads, in bytes.
    _READ_MAX = 1 << 24

    def __init__(self, client, path, options, mode, permissions=0o644):
        super().__init__()
        self._raw = None
        self._session = client._session
        self._raw = self._session.call("open", path, options, permissions)
        self._at = 0
        self._reads = options & 3 != _WRITE
        self._writes = options & 3 != _READ
        self._appends = "a" in mode
        self.name = path
        self.mode = mode.replace("+", "b+") if "+" in mode else mode + "b"
        if self._appends:
            self._at = self._session.call("fstat", self._raw).st_size

    @property
    def raw_file(self):
        """The handle, for `Client.bulk`."""
        return self._raw

    def _check(self):
        if self.closed:
            raise ValueError("I/O operation on closed file")

    def readable(self):
        self._check()
        return self._reads

    def writable(self):
        self._check()
        return self._writes

    def seekable(self):
        self._check()
        return True

    def pread(self, length, offset):
        """Bytes from `offset` on, without moving the position."""
        self._check()
        if not self._reads:
            raise io.UnsupportedOperation("not readable")
        return self._session.call("pread", self._raw, offset, min(length, self._READ_MAX))

    def pwrite(self, data, offset):
        """Write at `offset`, without moving the position."""
        self._check()
        if not self._writes:
            raise io.UnsupportedOperation("not writable")
        data = as_bytes(data)
        self._session.call("pwrite", self._raw, offset, data)
        return len(data)

    def readinto(self, buffer):
        view = memoryview(buffer).cast("B")
        data = self.pread(len(view), self._at)
        view[: len(data)] = data
        self._at += len(data)
        return len(data)

    def readall(self):
        parts = []
        while part := self.pread(self._READ_MAX, self._at):
            self._at += len(part)
            parts.append(part)
        return b"".join(parts)

    def write(self, data):
        self._check()
        if not self._writes:
            raise io.UnsupportedOperation("not writable")
        data = as_bytes(data)
        if self._appends:
            self._at = self._session.call("append", self._raw, data)
        else:
            self._session.call("pwrite", self._raw, self._at, data)
        self._at += len(data)
        return len(data)

    def seek(self, offset, whence=os.SEEK_SET):
        self._check()
        if whence == os.SEEK_SET:
            at = offset
        elif whence == os.SEEK_CUR:
            at = self._at + offset
        elif whence == os.SEEK_END:
            at = self.stat().st_size + offset
        elif whence in (os.SEEK_DATA, os.SEEK_HOLE):
            at = self._session.call("seek", self._raw, offset, whence - os.SEEK_DATA)
        else:
            raise ValueError(f"invalid whence value: {whence}")
        if at < 0:
            raise OSError(22, os.strerror(22), self.name)
        self._at = at
        return at

    def tell(self):
        self._check()
        return self._at

    def truncate(self, size=None):
        self._check()
        if not self._writes:
            raise io.UnsupportedOperation("not writable")
        size = self._at if size is None else size
        self._session.call("ftruncate", self._raw, size)
        return size

    def flush(self):
        super().flush()
        if self._writes:
            self._session.call("flush", self._raw)

    def sync(self):
        """Send what was written, and wait until it is on stable storage."""
        self._check()
        self._session.call("fsync", self._raw)

    def stat(self):
        """Attributes, with what was written."""
        self._check()
        return self._session.call("fstat", self._raw)

    def allocate(self, offset, length, *, keep_size=False):
        """Make the file at least as long as the end of a range."""
        self._check()
        self._session.call("fallocate", self._raw, offset, length, int(keep_size))

    def punch(self, offset, length):
        """Make a range zeros, and give its room back."""
        self._check()
        self._session.call("fallocate", self._raw, offset, length, 3)

    def lock(self, *, shared=False, wait=True, range=None):
        """Lock the file, or `range` (offset and length) of it. Without `wait`, `BlockingIOError`
        when another has it."""
        self._check()
        self._session.call("lock", self._raw, not shared, range, wait)

    def unlock(self, *, range=None):
        """Give a lock back."""
        self._check()
        self._session.call("unlock", self._raw, range)

    def fileno(self):
        raise io.UnsupportedOperation("a file of the native client has no descriptor")

    def isatty(self):
        self._check()
        return False

    def close(self):
        if self.closed:
            return
        try:
            if self._raw is not None:
                self._session.call("close", self._raw)
        finally:
            # The base class would flush what is closed.
            self._writes = False
            super().close()
