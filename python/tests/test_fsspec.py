"""fsspec's own suites, and the libraries that come through it."""

import fsspec
import fsspec.tests.abstract as abstract
import pytest

from pando.fsspec import PandoFileSystem


class Fixtures(abstract.AbstractFixtures):
    @pytest.fixture(scope="class")
    def fs(self, server):
        return PandoFileSystem(addresses=server.address, token_file=server.token_file)

    @pytest.fixture
    def fs_path(self, top):
        return top

    @pytest.fixture
    def fs_join(self):
        return lambda *parts: "/".join(parts)


class TestCopy(abstract.AbstractCopyTests, Fixtures):
    pass


class TestGet(abstract.AbstractGetTests, Fixtures):
    pass


class TestPut(abstract.AbstractPutTests, Fixtures):
    pass


class TestPipe(abstract.AbstractPipeTests, Fixtures):
    pass


class TestOpen(abstract.AbstractOpenTests, Fixtures):
    pass


@pytest.fixture
def options(server):
    return {"token_file": server.token_file}


@pytest.fixture
def url(server, top):
    return f"pando://{server.address}{top}"


def test_a_url_names_server_and_path(server, options, url, top):
    with fsspec.open(f"{url}/file", "w", **options) as file:
        file.write("by url")
    with fsspec.open(f"{url}/file", "r", **options) as file:
        assert file.read() == "by url"
    fs, path = fsspec.core.url_to_fs(f"{url}/file", **options)
    assert path == f"{top}/file"
    assert fs.unstrip_protocol(path) == f"{url}/file"
    assert fs.info(path)["size"] == 6
    assert fs.isfile(path) and not fs.isdir(path)
    with pytest.raises(ValueError):
        fsspec.filesystem("pando")


def test_listings_ranges_and_many_files(url, options, top):
    fs, _ = fsspec.core.url_to_fs(url, **options)
    fs.pipe({f"{top}/{number}": bytes([number]) * 10 for number in range(100)})
    fs.makedirs(f"{top}/d/e")
    fs.pipe_file(f"{top}/d/e/file", b"0123456789")
    assert len(fs.ls(top)) == 101
    assert len(fs.find(top)) == 101
    assert fs.find(top, detail=True)[f"{top}/d/e/file"]["size"] == 10
    assert set(fs.find(top, withdirs=True)) - set(fs.find(top)) == {
        top, f"{top}/d", f"{top}/d/e",
    }  # fmt: skip
    assert fs.glob(f"{top}/d/**/f*") == [f"{top}/d/e/file"]
    assert fs.cat_file(f"{top}/d/e/file", 2, 5) == b"234"
    assert fs.cat_file(f"{top}/d/e/file", -3) == b"789"
    assert fs.cat_file(f"{top}/d/e/file", -5, -2) == b"567"
    assert fs.cat_ranges([f"{top}/d/e/file"] * 2, [0, 8], [2, 20]) == [b"01", b"89"]
    assert fs.cat([f"{top}/1", f"{top}/none"], on_error="omit") == {f"{top}/1": b"\1" * 10}
    with pytest.raises(FileNotFoundError):
        fs.cat([f"{top}/1", f"{top}/none"])
    assert fs.du(f"{top}/d") == 10
    assert [sorted(files) for _, _, files in fs.walk(f"{top}/d")] == [[], ["file"]]
    fs.client.symlink("e", f"{top}/d/link")
    told = fs.info(f"{top}/d/link")
    assert (told["type"], told["islink"], told["destination"]) == ("directory", True, "e")
    fs.mv(f"{top}/d/e", f"{top}/d/moved")
    assert fs.exists(f"{top}/d/moved/file")
    fs.touch(f"{top}/d/moved/file", truncate=False)
    assert fs.size(f"{top}/d/moved/file") == 10
    assert fs.modified(f"{top}/d/moved/file").timestamp() > 0
    fs.rm(f"{top}/d", recursive=True)
    assert not fs.exists(f"{top}/d")
    with pytest.raises(IsADirectoryError):
        fs.rm(top)


def test_directories_above_are_made_unless_that_is_not_wanted(server, top):
    strict = PandoFileSystem(
        addresses=server.address, token_file=server.token_file, auto_mkdir=False
    )
    path = f"{top}/a/b/file"
    for write in (
        lambda: strict.pipe_file(path, b"x"),
        lambda: strict.pipe({path: b"x"}),
        lambda: strict.touch(path),
        lambda: strict.open(path, "wb"),
    ):
        with pytest.raises(FileNotFoundError):
            write()
    fs = PandoFileSystem(addresses=server.address, token_file=server.token_file)
    fs.pipe({path: b"x", f"{top}/c/file": b"y"})
    assert fs.find(top) == [path, f"{top}/c/file"]
    fs.mv(f"{top}/c/file", f"{top}/d/file")
    fs.cp_file(f"{top}/d/file", f"{top}/e/f/file")
    assert fs.cat_file(f"{top}/e/f/file") == b"y"
    with pytest.raises(FileNotFoundError):
        fs.mv(f"{top}/none", f"{top}/g/none")
    assert not fs.exists(f"{top}/g")


def test_a_transaction_is_there_whole_or_not(url, options, top):
    fs, _ = fsspec.core.url_to_fs(url, **options)
    with fs.transaction:
        with fs.open(f"{top}/file", "wb") as file:
            file.write(b"whole")
        assert not fs.exists(f"{top}/file")
    assert fs.cat_file(f"{top}/file") == b"whole"
    with pytest.raises(RuntimeError):
        with fs.transaction:
            with fs.open(f"{top}/other", "wb") as file:
                file.write(b"part")
            raise RuntimeError
    assert fs.ls(top) == [f"{top}/file"]
    with fs.transaction:
        appended, new = fs.open(f"{top}/file", "ab"), fs.open(f"{top}/new", "xb")
        appended.write(b", and more")
        new.write(b"new")
        assert fs.cat_file(f"{top}/file") == b"whole"
    assert fs.cat([f"{top}/file", f"{top}/new"]) == {
        f"{top}/file": b"whole, and more",
        f"{top}/new": b"new",
    }


def test_links_are_not_followed_by_what_removes(url, options, top):
    fs, _ = fsspec.core.url_to_fs(url, **options)
    fs.pipe({f"{top}/kept/file": b"kept", f"{top}/tree/a/file": b"x"})
    for name in ("one", "two"):
        fs.client.symlink("../kept", f"{top}/tree/{name}")
    assert fs.find(f"{top}/tree", maxdepth=5) == fs.find(f"{top}/tree")
    fs.rm(f"{top}/tree", recursive=True, maxdepth=3)
    assert fs.cat_file(f"{top}/kept/file") == b"kept"
    for root in ("/", "", url.removesuffix(top)):
        with pytest.raises(ValueError):
            fs.rm(root, recursive=True)
    fs.pipe({f"{top}/d/e/b": b"x", f"{top}/d/a": b"y"})
    fs.rm(f"{top}/d/**", recursive=True)
    assert not fs.exists(f"{top}/d/a")


def test_a_tree_is_moved_whole(url, options, top):
    fs, _ = fsspec.core.url_to_fs(url, **options)
    fs.pipe({f"{top}/a/b/file": b"x", f"{top}/c/file": b"y"})
    with pytest.raises(OSError):
        fs.mv(f"{top}/a", f"{top}/a/b", recursive=True)
    assert fs.cat_file(f"{top}/a/b/file") == b"x"
    fs.mv(f"{top}/a", f"{top}/c")
    assert fs.find(top) == [f"{top}/c/a/b/file", f"{top}/c/file"]
    fs.mkdir(f"{top}/new")
    fs.mv(f"{top}/c/*", f"{top}/new")
    assert fs.find(top) == [f"{top}/new/a/b/file", f"{top}/new/file"]


def test_pandas_and_pyarrow_and_dask(url, options):
    pd = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    frame = pd.DataFrame({"number": range(1000), "name": [f"n{n}" for n in range(1000)]})
    frame.to_csv(f"{url}/table.csv", index=False, storage_options=options)
    assert pd.read_csv(f"{url}/table.csv", storage_options=options).equals(frame)
    frame.to_parquet(f"{url}/table.parquet", storage_options=options)
    read = pd.read_parquet(f"{url}/table.parquet", columns=["number"], storage_options=options)
    assert read["number"].sum() == 499_500

    from pyarrow import dataset, fs as arrow

    pando_fs, path = fsspec.core.url_to_fs(url, **options)
    through = arrow.PyFileSystem(arrow.FSSpecHandler(pando_fs))
    found = dataset.dataset(f"{path}/table.parquet", filesystem=through, format="parquet")
    assert found.count_rows() == 1000

    bag = pytest.importorskip("dask.bag")
    lines = bag.read_text(f"{url}/table.csv", storage_options=options)
    assert lines.count().compute(scheduler="threads") == 1001


def test_zarr(url, options):
    zarr = pytest.importorskip("zarr")
    numpy = pytest.importorskip("numpy")
    array = zarr.open_array(
        f"{url}/array",
        mode="w",
        shape=(100, 100),
        chunks=(10, 10),
        dtype="f8",
        storage_options=options,
    )
    array[:] = numpy.arange(10_000).reshape(100, 100)
    again = zarr.open_array(f"{url}/array", mode="r", storage_options=options)
    assert again[99, 99] == 9999 and again[:].sum() == 49_995_000
