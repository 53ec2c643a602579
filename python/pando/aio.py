"""The client for asyncio: what it asks for goes on while other tasks run."""

import asyncio
import os

from .client import Client
from .file import as_bytes


class AsyncClient:
    """A file system, by path, for the tasks of an event loop.

        fs = pando.AsyncClient(pando.connect("127.0.0.1:7420"))
        sizes = await asyncio.gather(*(fs.stat(path) for path in paths))

    An operation whose task is cancelled goes on, and nobody is told how it ended.
    """

    def __init__(self, client: Client):
        self.client = client

    async def _call(self, operation, *arguments):
        loop = asyncio.get_running_loop()
        future = loop.create_future()

        def settle(value):
            if future.done():
                return
            if isinstance(value, BaseException):
                future.set_exception(value)
            else:
                future.set_result(value)

        def done(value):
            try:
                loop.call_soon_threadsafe(settle, value)
            except RuntimeError:
                # The loop is closed, and nobody waits.
                pass

        self.client._session.start(done, operation, *arguments)
        return await future

    async def stat(self, path, *, follow_symlinks=True):
        """As `Client.stat`."""
        return await self._call("stat", os.fsdecode(path), follow_symlinks)

    async def lstat(self, path):
        """As `Client.lstat`."""
        return await self._call("stat", os.fsdecode(path), False)

    async def exists(self, path):
        """As `Client.exists`."""
        try:
            await self.stat(path)
        except OSError:
            return False
        return True

    async def chmod(self, path, mode, *, follow_symlinks=True):
        """As `Client.chmod`."""
        await self._call("chmod", os.fsdecode(path), mode, follow_symlinks)

    async def truncate(self, path, length):
        """As `Client.truncate`."""
        await self._call("truncate", os.fsdecode(path), length)

    async def mkdir(self, path, mode=0o755):
        """As `Client.mkdir`."""
        await self._call("mkdir", os.fsdecode(path), mode)

    async def makedirs(self, path, mode=0o755):
        """Make a directory and those above; all may be there."""
        await self._call("makedirs", os.fsdecode(path), mode)

    async def rmdir(self, path):
        """As `Client.rmdir`."""
        await self._call("rmdir", os.fsdecode(path))

    async def unlink(self, path):
        """As `Client.unlink`."""
        await self._call("unlink", os.fsdecode(path))

    async def rename(self, source, target):
        """As `Client.rename`."""
        await self._call("rename", os.fsdecode(source), os.fsdecode(target), 0)

    async def symlink(self, target, path):
        """As `Client.symlink`."""
        await self._call("symlink", os.fsdecode(target), os.fsdecode(path))

    async def link(self, source, path):
        """As `Client.link`."""
        await self._call("link", os.fsdecode(source), os.fsdecode(path))

    async def readlink(self, path):
        """As `Client.readlink`."""
        return await self._call("readlink", os.fsdecode(path))

    async def listdir(self, path="/"):
        """As `Client.listdir`."""
        return await self._call("listdir", os.fsdecode(path))

    async def scandir(self, path="/"):
        """As `Client.scandir`, for `async for`."""
        listing = await self._call("pages", os.fsdecode(path), False)
        while (page := await self._call("next_page", listing)) is not None:
            if isinstance(page[1], OSError):
                raise page[1]
            for entry in page[1]:
                yield entry

    async def read_bytes(self, path, start=0, length=None):
        """As `Client.read_bytes`."""
        return await self._call("read", os.fsdecode(path), start, length)

    async def write_bytes(self, path, data):
        """As `Client.write_bytes`."""
        await self._call("write", os.fsdecode(path), as_bytes(data))
