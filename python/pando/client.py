"""The client whose calls wait."""

import errno
import io
import math
import os
import shutil
import socket
import stat
import threading
import weakref

from ._pando import Session
from .file import BufferedRandom, BufferedWriter, PandoFile, as_bytes, parse_mode

#: The most operations of a bulk call that are under way at a time.
IN_FLIGHT = 128

_CHANGES = {"set": 0, "create": 1, "replace": 2}

#: Clients whose locks a child of a fork makes anew: another thread may have held them.
_clients = weakref.WeakSet()


def _after_fork():
    for client in list(_clients):
        client._lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def _read_token(token, token_file):
    """The token, and how a copy of the client in another process finds it."""
    if token is not None:
        return token, {"token": token}
    if token_file is None:
        token_file = os.environ.get("PANDO_TOKEN_FILE")
    if token_file is None:
        token_file = os.path.join(os.path.expanduser("~"), ".config", "pando", "token")
    token_file = os.path.abspath(os.fspath(token_file))
    with open(token_file, encoding="ascii") as file:
        return file.read().strip(), {"token_file": token_file}


def connect(addresses, *, token=None, token_file=None, user=None, timeout=10.0):
    """Open a session with a file system.

    `addresses` is `"HOST:PORT[,HOST:PORT...]"` or a list of `"HOST:PORT"`. The token is the text
    `token`, or what is in `token_file`, in the file that `PANDO_TOKEN_FILE` names, or in
    `~/.config/pando/token`. `user` is `(uid, gid, groups)`: whom the calls act for; by default root,
    or the only user whom the token lets act. Raises `TimeoutError` when no server answers within
    `timeout` seconds, and `PermissionError` when the token is refused.
    """
    if isinstance(addresses, str):
        addresses = addresses.split(",")
    return Client(list(addresses), token=token, token_file=token_file, user=user, timeout=timeout)


class Client:
    """A file system, by path. Paths are text, bytes or path-like, and begin at the root.

    It may be used by several threads at once. A pickled copy, and the child of a fork, open a
    session of their own with their first call.
    """

    def __init__(self, addresses, *, token=None, token_file=None, user=None, timeout=10.0):
        if math.isnan(timeout) or timeout < 0:
            raise ValueError(f"invalid timeout: {timeout}")
        text, known = _read_token(token, token_file)
        self._begin(addresses, text, {**known, "user": user, "timeout": timeout})
        self._open = self._connect()

    def _begin(self, addresses, text, known):
        self._addresses = list(addresses)
        self._text = text
        self._known = known
        self._lock = threading.Lock()
        self._closed = False
        self._open = None
        _clients.add(self)

    def _connect(self):
        user = self._known["user"]
        if user is not None:
            uid, gid, *groups = user
            user = (uid, gid, list(groups[0]) if groups else [])
        name = f"{socket.gethostname()} pid {os.getpid()} python"
        seconds = float(self._known["timeout"])
        return Session(self._addresses, self._text, user=user, name=name, seconds=seconds)

    @property
    def _session(self):
        if self._closed:
            raise ValueError("the client is closed")
        session = self._open
        if session is not None and session.is_here:
            return session
        with self._lock:
            if self._open is None or not self._open.is_here:
                self._open = self._connect()
            return self._open

    def __reduce__(self):
        return _again, (self._addresses, self._known)

    def __repr__(self):
        return f"<pando.Client {','.join(self._addresses)}>"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    @property
    def addresses(self):
        """The servers that were given."""
        return list(self._addresses)

    @property
    def read_only(self):
        """Whether the token refuses every change."""
        return self._session.read_only

    def as_user(self, uid, gid, groups=()):
        """The same client, acting for another user. The session is shared."""
        other = Client.__new__(Client)
        known = {**self._known, "user": (uid, gid, list(groups))}
        other._begin(self._addresses, self._text, known)
        other._open = self._session.as_user(uid, gid, list(groups))
        return other

    def close(self):
        """Send what was written and end the session. Raises `OSError` if something was lost."""
        if self._closed:
            return
        self._closed = True
        if self._open is not None and self._open.is_here:
            self._open.close()

    # Attributes.

    def stat(self, path, *, follow_symlinks=True):
        """Attributes, as `os.stat_result`."""
        return self._session.call("stat", os.fsdecode(path), follow_symlinks)

    def lstat(self, path):
        """Attributes of what has this name, a symbolic link too."""
        return self._session.call("stat", os.fsdecode(path), False)

    def _kind(self, path):
        try:
            return stat.S_IFMT(self.stat(path).st_mode)
        except OSError:
            return 0

    def exists(self, path):
        """Whether a path leads to something."""
        return self._kind(path) != 0

    def isfile(self, path):
        """Whether a path leads to a regular file."""
        return self._kind(path) == stat.S_IFREG

    def isdir(self, path):
        """Whether a path leads to a directory."""
        return self._kind(path) == stat.S_IFDIR

    def chmod(self, path, mode, *, follow_symlinks=True):
        """Set permission bits."""
        self._session.call("chmod", os.fsdecode(path), mode, follow_symlinks)

    def chown(self, path, uid, gid, *, follow_symlinks=True):
        """Set owner and group; -1 leaves one as it is."""
        uid, gid = (None if number == -1 else number for number in (uid, gid))
        self._session.call("chown", os.fsdecode(path), uid, gid, follow_symlinks)

    def utime(self, path, times=None, *, ns=None, follow_symlinks=True):
        """Set access and modification time: seconds, or nanoseconds with `ns`; now without both."""
        if times is not None and ns is not None:
            raise ValueError("utime: you may specify either 'times' or 'ns' but not both")
        if times is not None:
            ns = tuple(round(seconds * 1_000_000_000) for seconds in times)
        atime, mtime = ns if ns is not None else (None, None)
        self._session.call("utime", os.fsdecode(path), atime, mtime, follow_symlinks)

    def truncate(self, path, length):
        """Cut a file, or make it longer with zeros."""
        self._session.call("truncate", os.fsdecode(path), length)

    def getxattr(self, path, name):
        """The value of an extended attribute."""
        return self._session.call("getxattr", os.fsdecode(path), name)

    def xattrs(self, path):
        """All extended attributes, as a dict of bytes by name."""
        return self._session.call("xattrs", os.fsdecode(path))

    def listxattr(self, path):
        """The names of all extended attributes."""
        return list(self.xattrs(path))

    def setxattr(self, path, name, value, *, mode="set"):
        """Set an extended attribute; `mode` `"create"` or `"replace"` asks that it be new or not."""
        self._session.call("setxattr", os.fsdecode(path), name, as_bytes(value), _CHANGES[mode])

    def removexattr(self, path, name):
        """Remove an extended attribute."""
        self._session.call("removexattr", os.fsdecode(path), name)

    # Names.

    def mkdir(self, path, mode=0o755):
        """Make a directory. There is no umask: the mode is taken as it is."""
        self._session.call("mkdir", os.fsdecode(path), mode)

    def makedirs(self, path, mode=0o755, exist_ok=False):
        """Make a directory and those above that are missing."""
        path = os.fsdecode(path)
        if not exist_ok and self.exists(path):
            raise FileExistsError(17, os.strerror(17), path)
        self._session.call("makedirs", path, mode)

    def mknod(self, path, mode=0o644, device=0):
        """Make a file, a pipe or a device, without opening it."""
        self._session.call("mknod", os.fsdecode(path), mode, device)

    def rmdir(self, path):
        """Remove an empty directory."""
        self._session.call("rmdir", os.fsdecode(path))

    def unlink(self, path):
        """Remove the name of a file."""
        self._session.call("unlink", os.fsdecode(path))

    remove = unlink

    def rename(self, source, target):
        """Move an entry, over a file or an empty directory that is at `target`."""
        self._session.call("rename", os.fsdecode(source), os.fsdecode(target), 0)

    replace = rename

    def rename_new(self, source, target):
        """Move an entry to a name that must be free."""
        self._session.call("rename", os.fsdecode(source), os.fsdecode(target), 1)

    def exchange(self, one, other):
        """Let two entries change places."""
        self._session.call("rename", os.fsdecode(one), os.fsdecode(other), 2)

    def symlink(self, target, path):
        """Make a symbolic link at `path`."""
        self._session.call("symlink", os.fsdecode(target), os.fsdecode(path))

    def link(self, source, path):
        """Give a file one more name."""
        self._session.call("link", os.fsdecode(source), os.fsdecode(path))

    def readlink(self, path):
        """Where a symbolic link points."""
        return self._session.call("readlink", os.fsdecode(path))

    def listdir(self, path="/"):
        """The names in a directory."""
        return self._session.call("listdir", os.fsdecode(path))

    def scandir(self, path="/"):
        """The entries of a directory, with attributes, as they arrive."""
        listing = self._session.call("pages", os.fsdecode(path), False)
        return self._entries(listing)

    def _entries(self, listing):
        for _, entries in self._pages(listing):
            if isinstance(entries, OSError):
                raise entries
            yield from entries

    def _pages(self, listing):
        while (page := self._session.call("next_page", listing)) is not None:
            yield page

    def scantree(self, path="/", *, onerror=None):
        """All entries below a directory, with attributes; 64 directories are listed at a time.

        The order is that in which they arrive; an entry comes after its directory. A directory that
        cannot be listed is told to `onerror`, or passed over. Symbolic links are not followed.
        """
        listing = self._session.call("pages", os.fsdecode(path), True)
        for _, entries in self._pages(listing):
            if not isinstance(entries, OSError):
                yield from entries
            elif onerror is not None:
                onerror(entries)

    def walk(self, top="/", topdown=True, onerror=None, followlinks=False):
        """As `os.walk`."""
        stack = [os.fsdecode(top)]
        while stack:
            top = stack.pop()
            if isinstance(top, tuple):
                yield top
                continue
            dirs, files = [], []
            try:
                for entry in self.scandir(top):
                    (dirs if _is_dir(entry) else files).append(entry.name)
            except OSError as error:
                if onerror is not None:
                    onerror(error)
                continue
            if topdown:
                yield top, dirs, files
            else:
                stack.append((top, dirs, files))
            for name in reversed(dirs):
                below = os.path.join(top, name)
                if followlinks or not self.islink(below):
                    stack.append(below)

    def islink(self, path):
        """Whether a path names a symbolic link."""
        try:
            return stat.S_ISLNK(self.lstat(path).st_mode)
        except OSError:
            return False

    def rmtree(self, path):
        """Remove a directory with everything below it; many at a time.

        Links are removed and not followed. Names are those of the moment when they were listed: who
        lets others change the tree meanwhile may remove what they have put there.
        """
        path = os.fsdecode(path)
        if not stat.S_ISDIR(self.lstat(path).st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        files, levels = [], []
        for entry in self.scantree(path, onerror=_raise):
            if not entry.is_dir(follow_symlinks=False):
                files.append((entry.path,))
                continue
            depth = entry.path.count("/")
            while len(levels) <= depth:
                levels.append([])
            levels[depth].append((entry.path,))
        _first_error(self.bulk("unlink", files))
        for level in reversed(levels):
            _first_error(self.bulk("rmdir", level))
        self.rmdir(path)

    # Contents.

    def open(self, path, mode="r", buffering=-1, encoding=None, errors=None, newline=None):
        """Open a file, as the built-in `open` does. What was written is seen by others after a flush
        or a close."""
        options, is_text, raw_mode = parse_mode(mode)
        raw = PandoFile(self, os.fsdecode(path), options, raw_mode)
        if buffering == 0:
            if is_text:
                raw.close()
                raise ValueError("can't have unbuffered text I/O")
            return raw
        size = raw.BUFFER if buffering in (-1, 1) else buffering
        if raw.readable() and raw.writable():
            file = BufferedRandom(raw, size)
        elif raw.writable():
            file = BufferedWriter(raw, size)
        else:
            file = io.BufferedReader(raw, size)
        if not is_text:
            return file
        text = io.TextIOWrapper(file, encoding, errors, newline, line_buffering=buffering == 1)
        text.mode = mode
        return text

    def read_bytes(self, path, start=0, length=None):
        """The bytes of a file, or some of them."""
        return self._session.call("read", os.fsdecode(path), start, length)

    def write_bytes(self, path, data):
        """Make a file of these bytes, or replace its contents."""
        self._session.call("write", os.fsdecode(path), as_bytes(data))

    def read_text(self, path, encoding="utf-8"):
        """The text of a file."""
        return self.read_bytes(path).decode(encoding)

    def write_text(self, path, text, encoding="utf-8"):
        """Make a file of this text, or replace its contents."""
        self.write_bytes(path, text.encode(encoding))

    def copy_file(self, source, target):
        """Copy a file without bringing its bytes to Python; permission bits go along, set-id bits do
        not. Raises `shutil.SameFileError` when both are one file."""
        session = self._session
        source, target = os.fsdecode(source), os.fsdecode(target)
        source_file = session.call("open", source, 0, 0)
        try:
            told = session.call("fstat", source_file)
            target_file = session.call("open", target, 1 | 8, told.st_mode & 0o777)
            try:
                if session.call("fstat", target_file).st_ino == told.st_ino:
                    raise shutil.SameFileError(f"{source!r} and {target!r} are the same file")
                session.call("ftruncate", target_file, 0)
                at = 0
                while copied := session.call("copy", source_file, at, target_file, at, 1 << 26):
                    at += copied
            finally:
                session.call("close", target_file)
        finally:
            session.call("close", source_file)

    # Everything.

    def bulk(self, operation, arguments, *, in_flight=IN_FLIGHT):
        """Many operations of one kind, `in_flight` at a time.

        `arguments` is a list of tuples, those of the session's operation. Returns a list with what
        each returned, or the `OSError` with which it failed. `stats`, `reads` and the like are
        easier to call.
        """
        return self._session.bulk(operation, arguments, in_flight)

    def stats(self, paths, *, follow_symlinks=True, in_flight=IN_FLIGHT):
        """The attributes of many paths: a sequence of `os.stat_result` or `OSError`, of which each is
        made when it is first asked for."""
        return self._session.stats(paths, follow_symlinks, in_flight)

    def reads(self, paths, *, in_flight=IN_FLIGHT):
        """The contents of many files: a list of `bytes` or `OSError`."""
        arguments = [(os.fsdecode(path), 0, None) for path in paths]
        return self.bulk("read", arguments, in_flight=in_flight)

    def writes(self, files, *, in_flight=IN_FLIGHT):
        """Make or replace many files: `files` is a dict of `bytes` by path. A list of `None` or
        `OSError`."""
        arguments = [(os.fsdecode(path), as_bytes(data)) for path, data in files.items()]
        return self.bulk("write", arguments, in_flight=in_flight)

    def unlinks(self, paths, *, in_flight=IN_FLIGHT):
        """Remove the names of many files: a list of `None` or `OSError`."""
        return self.bulk("unlink", [(os.fsdecode(path),) for path in paths], in_flight=in_flight)

    def mkdirs(self, paths, mode=0o755, *, in_flight=IN_FLIGHT):
        """Make many directories: a list of `None` or `OSError`."""
        arguments = [(os.fsdecode(path), mode) for path in paths]
        return self.bulk("mkdir", arguments, in_flight=in_flight)

    def statvfs(self):
        """Bytes, free bytes, files, and how many more there can be."""
        return self._session.call("statfs")

    def sync(self):
        """Bring everything that was answered to stable storage."""
        self._session.call("sync")


def _again(addresses, known):
    """A copy that connects with its first call."""
    text, _ = _read_token(known.get("token"), known.get("token_file"))
    client = Client.__new__(Client)
    client._begin(addresses, text, known)
    return client


def _is_dir(entry):
    try:
        return entry.is_dir(follow_symlinks=True)
    except OSError:
        return False


def _raise(error):
    raise error


def _first_error(results):
    for result in results:
        if isinstance(result, OSError) and not isinstance(result, FileNotFoundError):
            raise result
