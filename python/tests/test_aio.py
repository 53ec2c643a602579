"""The client for asyncio."""

import asyncio

import pytest

import pando


def test_tasks_wait_together(client, top):
    fs = pando.AsyncClient(client)

    async def work():
        await fs.makedirs(f"{top}/a/b")
        paths = [f"{top}/a/b/{number}" for number in range(300)]
        await asyncio.gather(*(fs.write_bytes(path, path.encode()) for path in paths))
        read = await asyncio.gather(*(fs.read_bytes(path) for path in paths))
        assert read == [path.encode() for path in paths]
        told = await asyncio.gather(*(fs.stat(path) for path in paths))
        assert {each.st_size for each in told} == {len(path) for path in paths}
        names = [entry.name async for entry in fs.scandir(f"{top}/a/b")]
        assert sorted(names) == sorted(await fs.listdir(f"{top}/a/b"))
        with pytest.raises(FileNotFoundError):
            await fs.stat(f"{top}/none")
        assert not await fs.exists(f"{top}/none")
        await fs.symlink("b", f"{top}/a/link")
        assert await fs.readlink(f"{top}/a/link") == "b"
        assert (await fs.lstat(f"{top}/a/link")).st_size == 1
        await fs.link(paths[0], f"{top}/link")
        await fs.rename(f"{top}/link", f"{top}/moved")
        await fs.chmod(f"{top}/moved", 0o600)
        await fs.truncate(f"{top}/moved", 1)
        assert await fs.read_bytes(paths[0]) == b"/"
        await fs.mkdir(f"{top}/empty")
        await fs.rmdir(f"{top}/empty")
        await fs.unlink(f"{top}/moved")

    asyncio.run(work())


def test_calls_that_wait_and_tasks_go_side_by_side(client, top):
    fs = pando.AsyncClient(client)

    async def work():
        writes = [asyncio.create_task(fs.write_bytes(f"{top}/{n}", b"x")) for n in range(50)]
        for number in range(50):
            await asyncio.to_thread(client.write_bytes, f"{top}/t{number}", b"y")
        await asyncio.gather(*writes)

    asyncio.run(work())
    assert len(client.listdir(top)) == 100


def test_a_cancelled_task_ends_and_the_rest_goes_on(client, top):
    fs = pando.AsyncClient(client)

    async def work():
        tasks = [asyncio.create_task(fs.write_bytes(f"{top}/{n}", b"x")) for n in range(50)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(results[0], asyncio.CancelledError)
        assert results[1:] == [None] * 49
        assert await fs.listdir(top)

    asyncio.run(work())
