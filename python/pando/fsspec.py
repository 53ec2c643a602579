"""Pando for fsspec: `pando://HOST:PORT/path` in pandas, pyarrow, dask, zarr and others."""

import datetime
import os

from fsspec.spec import AbstractFileSystem
from fsspec.utils import stringify_path

from .client import Client, connect

_KINDS = {0o100000: "file", 0o040000: "directory", 0o120000: "link"}


class PandoFileSystem(AbstractFileSystem):
    """A Pando file system.

        fsspec.open("pando://127.0.0.1:7420/table.csv", token_file="admin.token")

    `addresses`, `token`, `token_file`, `user` and `timeout` are those of `pando.connect`. Where a
    URL names no server, `addresses` does. Several are given as `pando://A:1,B:2/path`. What is written
    makes the directories above it that are missing, as in an object store; with `auto_mkdir=False`
    it fails there.
    """

    protocol = "pando"
    root_marker = "/"
    cachable = True
    local_file = False

    def __init__(
        self,
        addresses=None,
        token=None,
        token_file=None,
        user=None,
        timeout=10.0,
        auto_mkdir=True,
        **options,
    ):
        super().__init__(**options)
        if addresses is None:
            raise ValueError("no server: pando://HOST:PORT/path, or addresses='HOST:PORT'")
        if user is not None:
            user = tuple(user)
        self.auto_mkdir = auto_mkdir
        self.client = connect(
            addresses, token=token, token_file=token_file, user=user, timeout=timeout
        )

    @classmethod
    def _strip_protocol(cls, path):
        if isinstance(path, list):
            return [cls._strip_protocol(each) for each in path]
        path = stringify_path(path)
        if path.startswith("pando://"):
            path = path[len("pando://") :]
            if not path.startswith("/"):
                _, slash, rest = path.partition("/")
                path = slash + rest
        return "/" + path.strip("/")

    @staticmethod
    def _get_kwargs_from_urls(path):
        if not path.startswith("pando://"):
            return {}
        addresses = path[len("pando://") :].partition("/")[0]
        return {"addresses": addresses} if addresses else {}

    def unstrip_protocol(self, name):
        return f"pando://{','.join(self.client.addresses)}{self._strip_protocol(name)}"

    @property
    def fsid(self):
        return "pando-" + ",".join(self.client.addresses)

    # What there is.

    def _told(self, path, stat, target=None):
        kind = _KINDS.get(stat.st_mode & 0o170000, "other")
        told = {
            "name": path,
            "size": stat.st_size if kind != "directory" else 0,
            "type": kind,
            "created": stat.st_ctime,
            "mtime": stat.st_mtime,
            "mode": stat.st_mode,
            "uid": stat.st_uid,
            "gid": stat.st_gid,
            "ino": stat.st_ino,
            "nlink": stat.st_nlink,
            "islink": kind == "link",
        }
        if target is not None:
            told["destination"] = target
        return told

    def _entry(self, entry):
        """As of `info`, but a link is none of what it points to: who walks does not follow it."""
        try:
            stat = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            return None
        if not entry.is_symlink():
            return self._told(entry.path, stat)
        try:
            followed = self.client.stat(entry.path)
        except OSError:
            return self._told(entry.path, stat)
        told = self._told(entry.path, followed, self.client.readlink(entry.path))
        told.update(islink=True, type="link")
        return told

    def info(self, path, **kwargs):
        path = self._strip_protocol(path)
        stat = self.client.lstat(path)
        if stat.st_mode & 0o170000 != 0o120000:
            return self._told(path, stat)
        try:
            told = self._told(path, self.client.stat(path), self.client.readlink(path))
        except OSError:
            told = self._told(path, stat)
        told["islink"] = True
        return told

    def exists(self, path, **kwargs):
        return self.client.exists(self._strip_protocol(path))

    def isdir(self, path):
        return self.client.isdir(self._strip_protocol(path))

    def isfile(self, path):
        return self.client.isfile(self._strip_protocol(path))

    def ls(self, path, detail=False, **kwargs):
        path = self._strip_protocol(path)
        try:
            told = [self._entry(entry) for entry in self.client.scandir(path)]
            told = [each for each in told if each is not None]
        except NotADirectoryError:
            told = [self.info(path)]
        if detail:
            return told
        return sorted(each["name"] for each in told)

    def find(self, path, maxdepth=None, withdirs=False, detail=False, **kwargs):
        path = self._strip_protocol(path)
        if maxdepth is not None:
            return super().find(path, maxdepth, withdirs, detail=detail, **kwargs)
        found = {}
        try:
            is_dir = self.client.isdir(path)
            if is_dir:
                entries = self.client.scantree(path)
            elif self.client.exists(path):
                return {path: self.info(path)} if detail else [path]
            else:
                entries = ()
            if withdirs and is_dir:
                found[path] = self.info(path) if detail else None
            for entry in entries:
                if not withdirs and entry.is_dir(follow_symlinks=False):
                    continue
                told = self._entry(entry) if detail else True
                if told is not None:
                    found[entry.path] = told
        except FileNotFoundError:
            pass
        names = sorted(found)
        return {name: found[name] for name in names} if detail else names

    def created(self, path):
        return self._time(self.info(path)["created"])

    def modified(self, path):
        return self._time(self.info(path)["mtime"])

    @staticmethod
    def _time(seconds):
        return datetime.datetime.fromtimestamp(seconds, tz=datetime.timezone.utc)

    def ukey(self, path):
        stat = self.client.stat(self._strip_protocol(path))
        return f"{stat.st_ino}-{stat.st_size}-{stat.st_mtime_ns}"

    # Changes of names.

    def mkdir(self, path, create_parents=True, **kwargs):
        path = self._strip_protocol(path)
        if self.client.exists(path):
            raise FileExistsError(17, os.strerror(17), path)
        if create_parents:
            self.makedirs(path, exist_ok=True)
        else:
            self.client.mkdir(path)

    def makedirs(self, path, exist_ok=False):
        self.client.makedirs(self._strip_protocol(path), exist_ok=exist_ok)

    def rmdir(self, path):
        self.client.rmdir(self._strip_protocol(path))

    def rm_file(self, path):
        path = self._strip_protocol(path)
        try:
            self.client.unlink(path)
        except IsADirectoryError:
            # `rm` with a depth removes what it has found, directories last.
            self.client.rmdir(path)

    def _rm(self, path):
        self.rm_file(path)

    def rm(self, path, recursive=False, maxdepth=None):
        paths = [path] if isinstance(path, (str, os.PathLike)) else list(path)
        if any(self._strip_protocol(each) == "/" for each in paths):
            raise ValueError("the root is not removed")
        if maxdepth is not None:
            super().rm(path, recursive=recursive, maxdepth=maxdepth)
            return
        removed = set()
        for each in self.expand_path(paths):
            if any(parent in removed for parent in _parents(each)):
                continue
            if self.client.islink(each) or not self.client.isdir(each):
                self.client.unlink(each)
            elif recursive:
                self.client.rmtree(each)
                removed.add(each)
            else:
                raise IsADirectoryError(21, os.strerror(21), each)

    def mv_file(self, path1, path2, **kwargs):
        path1, path2 = self._strip_protocol(path1), self._strip_protocol(path2)
        self.client.lstat(path1)
        self._make(path2, lambda: self.client.rename(path1, path2))

    def mv(self, path1, path2, recursive=False, maxdepth=None, **kwargs):
        """Rename, also of whole trees: into `path2` if that is a directory."""
        if maxdepth is not None:
            raise ValueError("a tree is moved whole")
        target = self._strip_protocol(path2)
        into = stringify_path(path2).endswith("/") or self.isdir(target)
        sources = self.expand_path(path1)
        if len(sources) > 1 and not into:
            raise NotADirectoryError(20, os.strerror(20), target)
        for source in sources:
            name = source.rpartition("/")[2]
            self.mv_file(source, f"{target.rstrip('/')}/{name}" if into else target)

    def cp_file(self, path1, path2, **kwargs):
        path1, path2 = self._strip_protocol(path1), self._strip_protocol(path2)
        if self.isdir(path1):
            self.makedirs(path2, exist_ok=True)
        else:
            self.client.lstat(path1)
            self._make(path2, lambda: self.client.copy_file(path1, path2))

    def touch(self, path, truncate=True, **kwargs):
        path = self._strip_protocol(path)
        if truncate or not self.exists(path):
            self._make(path, lambda: self.client.write_bytes(path, b""))
        else:
            self.client.utime(path)

    def _make(self, path, call):
        """Calls what makes `path`, once more when the directory above had to be made first."""
        try:
            return call()
        except FileNotFoundError:
            if not self.auto_mkdir:
                raise
        self.makedirs(self._parent(path), exist_ok=True)
        return call()

    def chmod(self, path, mode):
        """Set permission bits."""
        self.client.chmod(self._strip_protocol(path), mode)

    # Contents.

    def _open(self, path, mode="rb", block_size=None, autocommit=True, **kwargs):
        path = self._strip_protocol(path)
        buffering = -1 if block_size in (None, "default") else int(block_size)
        if "r" in mode:
            return self.client.open(path, mode, buffering)
        if autocommit:
            return self._make(path, lambda: self.client.open(path, mode, buffering))
        return self._make(path, lambda: _Uncommitted(self.client, path, mode, buffering))

    def cat_file(self, path, start=None, end=None, **kwargs):
        path = self._strip_protocol(path)
        start, length = self._range(path, start, end)
        return self.client.read_bytes(path, start, length)

    def _range(self, path, start, end):
        size = None
        if (start or 0) < 0 or (end or 0) < 0:
            size = self.client.stat(path).st_size
        start = 0 if start is None else max(start + size, 0) if start < 0 else start
        if end is None:
            return start, None
        return start, max((end + size if end < 0 else end) - start, 0)

    def cat_ranges(self, paths, starts, ends, max_gap=None, on_error="return", **kwargs):
        count = len(paths)
        starts = starts if isinstance(starts, (list, tuple)) else [starts] * count
        ends = ends if isinstance(ends, (list, tuple)) else [ends] * count
        if not len(starts) == len(ends) == count:
            raise ValueError("paths, starts and ends are of different lengths")
        results, arguments = [None] * count, {}
        for at, (path, start, end) in enumerate(zip(paths, starts, ends)):
            path = self._strip_protocol(path)
            try:
                arguments[at] = (path, *self._range(path, start, end))
            except OSError as error:
                results[at] = error
        for at, result in zip(arguments, self.client.bulk("read", list(arguments.values()))):
            results[at] = result
        if on_error == "raise":
            _raise_first(results)
        return results

    def cat(self, path, recursive=False, on_error="raise", **kwargs):
        if kwargs:
            return super().cat(path, recursive=recursive, on_error=on_error, **kwargs)
        paths = self.expand_path(path, recursive=recursive)
        is_one = isinstance(path, (str, os.PathLike)) and len(paths) == 1
        if is_one and paths[0] == self._strip_protocol(path):
            return self.cat_file(paths[0])
        if recursive:
            paths = [each for each in paths if not self.isdir(each)]
        results = dict(zip(paths, self.client.reads(paths)))
        if on_error == "raise":
            _raise_first(results.values())
        if on_error == "omit":
            results = {key: got for key, got in results.items() if not isinstance(got, OSError)}
        return results

    def pipe_file(self, path, value, mode="overwrite", **kwargs):
        path = self._strip_protocol(path)
        if mode == "create":
            with self._make(path, lambda: self.client.open(path, "xb")) as file:
                file.write(value)
        else:
            self._make(path, lambda: self.client.write_bytes(path, value))

    def pipe(self, path, value=None, **kwargs):
        if isinstance(path, dict) and not kwargs:
            files = {self._strip_protocol(key): data for key, data in path.items()}
            for key, result in zip(files, self.client.writes(files)):
                if isinstance(result, FileNotFoundError):
                    self.pipe_file(key, files[key])
                elif result is not None:
                    raise result
        else:
            super().pipe(path, value, **kwargs)


class _Uncommitted:
    """A file that has its name, or its new contents, only once it is committed."""

    def __init__(self, client: Client, path, mode, buffering):
        self._client = client
        self._is_new = "x" in mode
        self.path = path
        parent, _, name = path.rpartition("/")
        name = os.fsdecode(os.fsencode(name)[:200])
        self._temporary = f"{parent}/.{name}.{os.getpid()}.{id(self):x}.tmp"
        if "a" in mode and client.exists(path):
            client.copy_file(path, self._temporary)
        else:
            mode = mode.replace("w", "x").replace("a", "x")
        self._file = client.open(self._temporary, mode, buffering)

    def commit(self):
        """Give the file its name."""
        self._file.close()
        rename = self._client.rename_new if self._is_new else self._client.rename
        rename(self._temporary, self.path)

    def discard(self):
        """Remove what was written."""
        self._file.close()
        self._client.unlink(self._temporary)

    def __getattr__(self, name):
        return getattr(self._file, name)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._file.close()

    def __iter__(self):
        return iter(self._file)


def _parents(path):
    while path := path.rpartition("/")[0]:
        yield path


def _raise_first(results):
    for result in results:
        if isinstance(result, OSError):
            raise result
