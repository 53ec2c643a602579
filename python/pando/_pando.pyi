from collections.abc import Callable, Iterable, Sequence
from os import stat_result
from typing import Any

class Session:
    """A session with the servers of a file system. `Client` and `AsyncClient` call it."""

    read_only: bool
    is_here: bool
    def __new__(
        cls,
        addresses: Sequence[str],
        token: str,
        *,
        user: tuple[int, int, list[int]] | None = None,
        name: str = "",
        seconds: float = 10.0,
    ) -> Session: ...
    def as_user(self, uid: int, gid: int, groups: list[int]) -> Session: ...
    def call(self, name: str, *args: Any) -> Any: ...
    def bulk(self, name: str, args: Sequence[tuple[Any, ...]], in_flight: int) -> list[Any]: ...
    def stats(self, paths: Iterable[Any], follow: bool, in_flight: int) -> Stats: ...
    def start(self, done: Callable[[Any], None], name: str, *args: Any) -> None: ...
    def close(self) -> None: ...

class DirEntry:
    """An entry of a directory, as `os.DirEntry`."""

    name: str
    path: str
    def __fspath__(self) -> str: ...
    def inode(self) -> int: ...
    def is_dir(self, *, follow_symlinks: bool = True) -> bool: ...
    def is_file(self, *, follow_symlinks: bool = True) -> bool: ...
    def is_symlink(self) -> bool: ...
    def stat(self, *, follow_symlinks: bool = True) -> stat_result: ...

class Stats(Sequence[stat_result | OSError]):
    """The attributes of many paths."""

class RawFile:
    """The handle of an open file."""

class Listing:
    """An open listing."""

def end() -> None:
    """Calls nobody any more: the interpreter ends."""
