"""Rates of the Python client, beside the native client in Rust and, for a tree, a mount.

    python python/bench/rates.py --pando target/release/pando [--files 20000] [--tree 100000]

Starts a server of its own. Prints a line for each figure: operations per second.
"""

import argparse
import json
import os
import pathlib
import subprocess
import tempfile
import time

import pando


def rate(what, count, call):
    """Prints how many a second there are."""
    began = time.perf_counter()
    call()
    each = (time.perf_counter() - began) / count
    print(f"{what:<44}{1 / each:>10,.0f}/s", flush=True)
    return 1 / each


def one_by_one(call, paths):
    """Calls `call` with each path."""
    for path in paths:
        call(path)


def native(program, address, token, files, in_flight):
    """Prints what `pando bench md` reaches in Rust, by phase."""
    done = subprocess.run(
        [program, "bench", "md", address, "--token", token, "--ranks", "1", "--in-flight",
         str(in_flight), "--iterations", "1", "--files", str(files), "--phases",
         "file_create,file_stat,file_remove", "--json"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    for line in done.stdout.splitlines():
        row = json.loads(line)
        what = f"Rust: {row['phase']}, {in_flight} in flight"
        print(f"{what:<44}{row['ops_per_s']:>10,.0f}/s", flush=True)


def main():
    parse = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parse.add_argument("--pando", required=True)
    parse.add_argument("--files", type=int, default=20_000)
    parse.add_argument("--tree", type=int, default=100_000)
    options = parse.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        data = pathlib.Path(directory) / "data"
        subprocess.run(
            [options.pando, "format", "--data", data], check=True, capture_output=True
        )
        server = subprocess.Popen(
            [options.pando, "serve", "--data", data, "--listen", "127.0.0.1:0", "--http", "off"],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        try:
            address = next(
                line.split()[3] for line in server.stdout if line.startswith("serving ")
            )
            measure(options, address, str(data / "admin.token"))
        finally:
            server.terminate()
            server.wait()


def measure(options, address, token):
    fs = pando.connect(address, token_file=token)
    count = options.files
    for turn in range(3):
        for in_flight in (1, 128):
            native(options.pando, address, token, count, in_flight)
        fs.mkdir("/bench")
        paths = [f"/bench/{number}" for number in range(count)]
        rate("Python: create", count, lambda: one_by_one(fs.mknod, paths))
        rate("Python: stat", count, lambda: one_by_one(fs.stat, paths))
        rate("Python: stats, 10,000 at once", 10_000, lambda: fs.stats(paths[:10_000]))
        rate("Python: the same, and each looked at", 10_000, lambda: [
            told.st_size for told in fs.stats(paths[:10_000])
        ])  # fmt: skip
        rate("Python: unlink", count, lambda: one_by_one(fs.unlink, paths))
        fs.rmtree("/bench")
    tree(fs, options.pando, address, token, options.tree)
    fs.close()


def tree(fs, program, address, token, count):
    """Small files in directories of 1,000."""
    from pando.fsspec import PandoFileSystem

    names = [f"/tree/{number // 1000}/{number}" for number in range(count)]
    fs.mkdir("/tree")
    fs.mkdirs(sorted({os.path.dirname(name) for name in names}))
    files = {name: b"x" * 1000 for name in names}
    rate("Python: writes of 1,000 bytes", count, lambda: fs.writes(files))
    again = pando.connect(address, token_file=token)
    rate("Python: reads, batches of 256", count, lambda: [
        again.reads(names[at : at + 256]) for at in range(0, count, 256)
    ])  # fmt: skip
    rate("Python: read_bytes, one by one", count, lambda: one_by_one(again.read_bytes, names))
    with tempfile.TemporaryDirectory() as directory:
        point, local = (pathlib.Path(directory) / name for name in ("mount", "local"))
        point.mkdir()
        mount = [program, "mount", address, str(point), "--token", token]
        subprocess.run(mount, check=True, capture_output=True)
        try:
            read = lambda base: one_by_one(lambda name: open(f"{base}{name}", "rb").read(), names)
            rate("a mount: open and read, one by one", count, lambda: read(point))
        finally:
            subprocess.run([program, "umount", str(point)], check=True)
        for name in sorted({os.path.dirname(name) for name in names}):
            os.makedirs(f"{local}{name}")
        for name, data in files.items():
            pathlib.Path(f"{local}{name}").write_bytes(data)
        rate("a local disk, in its cache: the same", count, lambda: read(local))
    rate("Python: scantree", count, lambda: sum(1 for _ in again.scantree("/tree")))
    fsspec = PandoFileSystem(addresses=address, token_file=token)
    rate("fsspec: find", count, lambda: fsspec.find("/tree"))
    rate("fsspec: find with details", count, lambda: fsspec.find("/tree", detail=True))


if __name__ == "__main__":
    main()
