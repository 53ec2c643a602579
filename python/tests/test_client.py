"""The calls that wait."""

import asyncio
import errno
import gc
import io
import multiprocessing
import os
import pathlib
import pickle
import shutil
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Sequence

import pytest

import pando


def fails(number, call, *args, **kwargs):
    """Asserts that a call fails with this errno."""
    with pytest.raises(OSError) as caught:
        call(*args, **kwargs)
    assert caught.value.errno == number
    return caught.value


def test_errors_are_those_of_the_standard_library(client, top):
    with pytest.raises(FileNotFoundError) as caught:
        client.stat(f"{top}/nothing")
    assert caught.value.filename == f"{top}/nothing"
    client.write_bytes(f"{top}/file", b"x")
    with pytest.raises(FileExistsError):
        client.mkdir(f"{top}/file")
    with pytest.raises(NotADirectoryError):
        client.listdir(f"{top}/file")
    with pytest.raises(IsADirectoryError):
        client.open(top)
    fails(errno.ENOTEMPTY, client.rmdir, top)
    fails(errno.ENODATA, client.getxattr, f"{top}/file", "user.none")
    fails(errno.ENAMETOOLONG, client.mkdir, f"{top}/{'n' * 256}")
    client.symlink("loop", f"{top}/loop")
    fails(errno.ELOOP, client.stat, f"{top}/loop")
    with pytest.raises(ValueError):
        client.stat(f"{top}/a\0b")
    with pytest.raises(TypeError):
        client.stat(3.5)


def test_who_comes_without_a_good_token_gets_a_clear_error(server, tmp_path):
    with pytest.raises(PermissionError):
        pando.connect(server.address, token="nonsense")
    with pytest.raises(FileNotFoundError):
        pando.connect(server.address, token_file=tmp_path / "none")
    with pytest.raises(TimeoutError):
        pando.connect("127.0.0.1:1", token_file=server.token_file, timeout=0.3)


def test_attributes_are_what_was_set(client, top):
    path = f"{top}/file"
    client.write_text(path, "grün")
    client.chmod(path, 0o640)
    client.chown(path, 12, -1)
    client.utime(path, ns=(1_500_000_000_123_456_789, -1_000_000_001))
    told = client.stat(path)
    assert (stat.S_IMODE(told.st_mode), stat.S_ISREG(told.st_mode)) == (0o640, True)
    assert (told.st_uid, told.st_gid, told.st_size, told.st_nlink) == (12, 0, 5, 1)
    assert told.st_atime_ns == 1_500_000_000_123_456_789
    assert (told.st_mtime_ns, told.st_mtime) == (-1_000_000_001, pytest.approx(-1.000000001))
    assert told.st_blocks * 512 >= told.st_size
    client.setxattr(path, "user.one", b"1", mode="create")
    fails(errno.EEXIST, client.setxattr, path, "user.one", b"2", mode="create")
    client.setxattr(path, "user.two", b"\0\xff", mode="set")
    assert client.xattrs(path) == {"user.one": b"1", "user.two": b"\0\xff"}
    client.removexattr(path, "user.one")
    assert client.listxattr(path) == ["user.two"]
    client.truncate(path, 2)
    assert client.read_bytes(path) == b"gr"
    before = client.stat(path).st_mtime
    client.utime(path)
    assert client.stat(path).st_mtime > before


def test_names_may_be_text_bytes_and_paths_of_any_bytes(client, top):
    odd = b"\xff\xfe \n"
    client.write_bytes(os.fsencode(top) + b"/" + odd, b"odd")
    assert client.listdir(top) == [os.fsdecode(odd)]
    assert client.read_bytes(f"{top}/{os.fsdecode(odd)}") == b"odd"
    [entry] = client.scandir(top)
    assert os.fsencode(entry) == os.fsencode(top) + b"/" + odd
    assert entry.stat().st_size == 3


def test_names_are_moved_linked_and_removed(client, top):
    one, two, link = f"{top}/one", f"{top}/two", f"{top}/link"
    client.write_bytes(one, b"1")
    client.link(one, two)
    assert client.stat(two).st_nlink == 2
    client.symlink("two", link)
    assert client.readlink(link) == "two"
    assert client.read_bytes(link) == b"1"
    assert stat.S_ISLNK(client.lstat(link).st_mode)
    client.write_bytes(f"{top}/other", b"o")
    fails(errno.EEXIST, client.rename_new, one, f"{top}/other")
    client.exchange(one, f"{top}/other")
    assert client.read_bytes(one) == b"o"
    client.rename(one, two)
    assert sorted(client.listdir(top)) == ["link", "other", "two"]
    client.makedirs(f"{top}/a/b/c")
    with pytest.raises(FileExistsError):
        client.makedirs(f"{top}/a/b/c")
    client.makedirs(f"{top}/a/b/c", exist_ok=True)
    client.mknod(f"{top}/pipe", stat.S_IFIFO | 0o600)
    assert stat.S_ISFIFO(client.stat(f"{top}/pipe").st_mode)
    client.rmtree(f"{top}/a")
    assert not client.exists(f"{top}/a")


def test_a_link_is_removed_and_not_followed(client, top):
    client.makedirs(f"{top}/kept/below")
    client.write_bytes(f"{top}/kept/file", b"kept")
    client.mkdir(f"{top}/tree")
    client.symlink("../kept", f"{top}/tree/link")
    client.symlink("kept", f"{top}/link")
    with pytest.raises(NotADirectoryError):
        client.rmtree(f"{top}/link")
    client.rmtree(f"{top}/tree")
    assert client.read_bytes(f"{top}/kept/file") == b"kept"
    assert client.isdir(f"{top}/kept/below") and client.islink(f"{top}/link")


def test_a_copy_is_not_made_over_its_source(client, top):
    path = f"{top}/file"
    client.write_bytes(path, b"whole")
    client.link(path, f"{top}/other")
    client.chmod(path, 0o4755)
    for target in (path, f"{top}/other"):
        with pytest.raises(shutil.SameFileError):
            client.copy_file(path, target)
    client.write_bytes(f"{top}/copy", b"something longer")
    client.copy_file(path, f"{top}/copy")
    client.copy_file(path, f"{top}/new")
    assert client.read_bytes(path) == client.read_bytes(f"{top}/copy") == b"whole"
    assert stat.S_IMODE(client.stat(f"{top}/new").st_mode) == 0o755


def test_a_flush_reaches_others(client, server, top):
    with pando.connect(server.address, token_file=server.token_file) as other:
        with client.open(f"{top}/file", "w") as file:
            file.write("first")
            file.flush()
            assert other.read_text(f"{top}/file") == "first"


def test_numbers_that_make_no_sense_are_refused(client, top):
    path = f"{top}/file"
    client.write_bytes(path, b"x")
    fails(errno.EINVAL, client.truncate, path, -1)
    fails(errno.EINVAL, client.read_bytes, path, -1)
    for call in (lambda: client.write_bytes(path, 5), lambda: client.setxattr(path, "user.x", 5)):
        with pytest.raises(TypeError):
            call()
    assert client.read_bytes(path) == b"x"
    assert len(client.stats([path] * 3, in_flight=1 << 60)) == 3


def test_a_client_is_used_when_a_file_is_finalized_anywhere(client, top):
    fs = pando.AsyncClient(client)

    async def work():
        for number in range(30):
            lost = client.open(f"{top}/{number}", "wb", 0)
            lost.write(b"x")
            # A collection finalizes it, on whichever thread that comes.
            lost.itself = lost
            del lost
            await fs.stat(top)
            gc.collect()

    asyncio.run(work())
    assert [each.st_size for each in client.stats([f"{top}/{n}" for n in range(30)])] == [1] * 30


def test_a_process_ends_while_operations_are_under_way(server):
    script = """
import asyncio, sys, pando
client = pando.connect(sys.argv[1], token_file=sys.argv[2])
fs = pando.AsyncClient(client)
async def work():
    tasks = [asyncio.create_task(fs.stat("/")) for _ in range(200)]
    await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
asyncio.run(work())
"""
    for _ in range(5):
        command = [sys.executable, "-c", script, server.address, server.token_file]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")


def test_a_tree_is_walked_as_the_standard_library_walks(client, top, tmp_path):
    for name in ["a/b/file", "a/c/file", "a/file", "d/file"]:
        for make, write, base in [
            (lambda path: client.makedirs(path, exist_ok=True), client.write_bytes, top),
            (lambda path: os.makedirs(path, exist_ok=True), _write, str(tmp_path)),
        ]:
            path = f"{base}/{name}"
            make(os.path.dirname(path))
            write(path, b"x")
    for target, name in [("a", "link"), ("loop", "loop"), ("none", "none")]:
        client.symlink(target, f"{top}/{name}")
        os.symlink(target, tmp_path / name)

    def normal(walk, base):
        rows = [(path[len(base) :], sorted(dirs), sorted(files)) for path, dirs, files in walk]
        return sorted(rows)

    for topdown in (True, False):
        ours = normal(client.walk(top, topdown), top)
        assert ours == normal(os.walk(tmp_path, topdown), str(tmp_path))
    assert normal(client.walk(top, followlinks=True), top) == normal(
        os.walk(tmp_path, followlinks=True), str(tmp_path)
    )
    tree = sorted(entry.path[len(top) :] for entry in client.scantree(top))
    assert tree == [
        "/a", "/a/b", "/a/b/file", "/a/c", "/a/c/file", "/a/file", "/d", "/d/file", "/link",
        "/loop", "/none",
    ]  # fmt: skip
    errors = []
    assert list(client.walk(f"{top}/never", onerror=errors.append)) == []
    assert isinstance(errors[0], FileNotFoundError)
    [link] = [entry for entry in client.scandir(top) if entry.name == "link"]
    assert (link.is_symlink(), link.is_dir(), link.is_dir(follow_symlinks=False)) == (
        True, True, False,
    )  # fmt: skip


def _write(path, data):
    with open(path, "wb") as file:
        file.write(data)


#: Things to do with a file, of which the answers are compared with those of the standard library.
STEPS = [
    lambda file: file.write(b"0123456789" * 1000),
    lambda file: file.seek(5),
    lambda file: file.read(7),
    lambda file: file.tell(),
    lambda file: file.write(b"abc"),
    lambda file: file.seek(-3, os.SEEK_CUR),
    lambda file: file.read(5),
    lambda file: file.seek(0, os.SEEK_END),
    lambda file: file.truncate(9_000),
    lambda file: file.seek(8_998),
    lambda file: file.read(),
    lambda file: file.seek(12_000),
    lambda file: file.write(b"far"),
    lambda file: file.seek(0),
    lambda file: file.read().count(b"\0"),
    lambda file: file.readinto(bytearray(4)),
    lambda file: file.seek(-1),
]


@pytest.mark.parametrize("buffering", [-1, 0])
@pytest.mark.parametrize("mode", ["w+b", "x+b", "a+b", "r+b", "rb", "wb"])
def test_a_file_answers_as_one_of_the_standard_library(client, top, tmp_path, mode, buffering):
    path, local = f"{top}/file", tmp_path / "file"
    if "x" not in mode:
        client.write_bytes(path, b"was there" * 3000)
        local.write_bytes(b"was there" * 3000)

    def trace(file):
        said = []
        for step in STEPS:
            try:
                said.append(step(file))
            except (OSError, ValueError) as error:
                said.append(type(error).__name__)
        said.append((file.readable(), file.writable(), file.seekable(), file.isatty()))
        file.close()
        said.append(file.closed)
        with pytest.raises(ValueError):
            file.read(1)
        return said

    assert trace(client.open(path, mode, buffering)) == trace(open(local, mode, buffering))
    assert client.read_bytes(path) == local.read_bytes()


def test_text_is_read_and_written(client, top):
    path = f"{top}/text"
    with client.open(path, "w", encoding="utf-16", newline="\r\n") as file:
        print("één", file=file)
        print("twee", file=file)
    assert client.read_text(path, "utf-16") == "één\r\ntwee\r\n"
    with client.open(path, encoding="utf-16") as file:
        assert list(file) == ["één\n", "twee\n"]
    for mode in ("", "rw", "z", "rbt", "++"):
        with pytest.raises(ValueError):
            client.open(path, mode)
    with pytest.raises(ValueError):
        client.open(path, "r", buffering=0)
    with pytest.raises(io.UnsupportedOperation):
        client.open(path, "rb").fileno()


def test_locks_copies_and_holes(client, server, top):
    path = f"{top}/file"
    client.write_bytes(path, bytes(range(256)) * 8192)
    with client.open(path, "r+b", 0) as one, client.open(path, "r+b", 0) as two:
        one.lock()
        with pytest.raises(BlockingIOError):
            two.lock(wait=False)
        one.unlock()
        two.lock(shared=True)
        two.unlock()
        one.lock(range=(0, 10))
        two.lock(range=(10, 10), wait=False)
        with pytest.raises(BlockingIOError):
            two.lock(range=(5, 1), wait=False)
        one.punch(0, 1 << 20)
        assert one.pread(4, 0) == bytes(4)
        assert one.seek(0, os.SEEK_DATA) == 1 << 20
        one.allocate(0, 5 << 20)
        assert two.stat().st_size == 5 << 20
        one.sync()
    client.copy_file(path, f"{top}/copy")
    assert client.read_bytes(f"{top}/copy") == client.read_bytes(path)
    assert client.read_bytes(path, (1 << 20) + 3, 4) == bytes([3, 4, 5, 6])


def test_many_calls_at_once_tell_each_result_in_its_place(client, top):
    files = {f"{top}/{number}": str(number).encode() for number in range(500)}
    assert client.writes(files) == [None] * 500
    paths = [*files, f"{top}/none"]
    assert client.reads(paths)[:-1] == list(files.values())
    assert isinstance(client.reads(paths)[-1], FileNotFoundError)
    told = client.stats(paths, in_flight=3)
    assert [each.st_size for each in told[:-1]] == [len(data) for data in files.values()]
    assert told[-1].filename == f"{top}/none"
    assert told[0] is told[0] and isinstance(told, Sequence) and len(told) == 501
    assert told == list(told) and told == pickle.loads(pickle.dumps(told))[:-1] + [told[-1]]
    assert told[1:4] == [told[1], told[2], told[3]] and told[::-200] == list(told)[::-200]
    assert told[-501] is told[0] and told.index(told[7]) == 7 and told.count(told[7]) == 1
    assert told + [1] == [*told, 1] and told[5] in told and told != list(told)[1:]
    assert list(reversed(told))[1] is told[-2] and repr(told[:1]) == repr(list(told)[:1])
    for outside in (501, -502):
        with pytest.raises(IndexError):
            told[outside]
    assert client.stats([]) == [] and not client.stats([])
    assert client.stats([os.fsencode(top), pathlib.Path(top)])[1] == client.stat(top)
    with pytest.raises(ValueError):
        client.stats([f"{top}/\0"])
    with pytest.raises(TypeError):
        client.stats([3])
    assert client.mkdirs([f"{top}/d{number}" for number in range(10)]) == [None] * 10
    gone = client.unlinks(paths)
    assert gone[:-1] == [None] * 500
    assert isinstance(gone[-1], FileNotFoundError)
    with pytest.raises(ValueError):
        client.bulk("nonsense", [()])
    with pytest.raises((TypeError, IndexError)):
        client.bulk("stat", [()])
    with pytest.raises(TypeError):
        client.bulk("stat", [("/", True, 3)])


def test_threads_share_a_client(client, top):
    failed = []

    def work(number):
        try:
            client.mkdir(f"{top}/{number}")
            for file in range(50):
                with client.open(f"{top}/{number}/{file}", "wb") as opened:
                    opened.write(b"x" * file)
            names = {entry.name: entry.stat().st_size for entry in client.scandir(f"{top}/{number}")}
            assert names == {str(file): file for file in range(50)}
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert len(client.listdir(top)) == 8


def test_the_gil_is_free_while_a_call_waits(client, top):
    path = f"{top}/file"
    with client.open(path, "wb", 0) as one, client.open(path, "wb", 0) as two:
        one.lock()
        got = threading.Event()

        def wait():
            two.lock()
            got.set()

        waiter = threading.Thread(target=wait)
        waiter.start()
        assert not got.wait(0.05)
        one.unlock()
        waiter.join()
        assert got.is_set()


def test_a_call_is_interrupted(client, top):
    path = f"{top}/file"
    # A shell has what it starts in the background ignore the signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with client.open(path, "wb", 0) as one, client.open(path, "wb", 0) as two:
        one.lock()
        timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            two.lock()
        timer.join()
        signal.signal(signal.SIGINT, before)
        one.unlock()
        two.lock(wait=False)
    assert client.read_bytes(path) == b""


def test_another_user_is_held_by_permissions(client, top):
    client.write_bytes(f"{top}/secret", b"x")
    client.chmod(f"{top}/secret", 0o600)
    other = client.as_user(1000, 1000, [5])
    with pytest.raises(PermissionError):
        other.read_bytes(f"{top}/secret")
    assert client.read_bytes(f"{top}/secret") == b"x"
    again = pickle.loads(pickle.dumps(other))
    with pytest.raises(PermissionError):
        again.read_bytes(f"{top}/secret")
    again.close()


def _reads(client, path, queue):
    queue.put((client.read_bytes(path), os.getpid()))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_other_processes_use_the_client(client, top, method):
    client.write_bytes(f"{top}/file", b"for all")
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    process = context.Process(target=_reads, args=(client, f"{top}/file", queue))
    process.start()
    assert queue.get(timeout=60) == (b"for all", process.pid)
    process.join()
    assert process.exitcode == 0
    assert client.read_bytes(f"{top}/file") == b"for all"


def _uses_what_is_the_parents(client, opened, queue):
    said = []
    for call in (lambda: opened.read(1), lambda: client.bulk("fstat", [(opened.raw_file,)])):
        try:
            said.append(call())
        except OSError as error:
            said.append(error.errno)
    queue.put(said)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_file_of_the_parent_is_refused_in_a_fork(client, top):
    context = multiprocessing.get_context("fork")
    with client.open(f"{top}/file", "w+b", 0) as opened:
        opened.write(b"x")
        queue = context.Queue()
        process = context.Process(target=_uses_what_is_the_parents, args=(client, opened, queue))
        process.start()
        assert queue.get(timeout=60) == [errno.EBADF, errno.EBADF]
        process.join()
        assert process.exitcode == 0
        opened.write(b"y")
    assert client.read_bytes(f"{top}/file") == b"xy"


def test_a_closed_client_says_so(server):
    closed = pando.connect(server.address, token_file=server.token_file)
    assert "127.0.0.1" in repr(closed)
    assert not closed.read_only
    closed.close()
    closed.close()
    with pytest.raises(ValueError):
        closed.stat("/")
    with pytest.raises(ValueError):
        pando.connect(server.address, token_file=server.token_file, timeout=-1)


def test_the_whole_file_system_tells_its_room(client):
    total, free, files, files_free = client.statvfs()
    assert total >= free > 0
    assert files > 0 and files_free > 0
    client.sync()
