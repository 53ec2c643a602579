"""Pando's native client: a distributed file system without a mount.

    import pando

    fs = pando.connect("127.0.0.1:7420", token_file="admin.token")
    fs.makedirs("/results/2026")
    with fs.open("/results/2026/summary", "w") as file:
        file.write("42 of 42")
    for entry in fs.scandir("/results"):
        print(entry.name, entry.stat().st_size)

Errors are `OSError` and its subclasses, with `errno` and `filename`. The GIL is free while a call
waits, and a call can be interrupted (Ctrl-C).
"""

import atexit
import collections.abc

from ._pando import DirEntry, RawFile, Stats, end
from .aio import AsyncClient
from .client import Client, connect
from .file import PandoFile

# Before the interpreter goes, nobody is called any more.
atexit.register(end)
collections.abc.Sequence.register(Stats)

__all__ = ["AsyncClient", "Client", "DirEntry", "PandoFile", "RawFile", "Stats", "connect"]
