//! Data directories that cannot be served: damaged, foreign, of another version. Each is told in
//! one line that says what to do, and nothing is written to them, so that the right files put back
//! are enough.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use client::{Client, Config};

use crate::harness::{Data, Running, fail, folder, succeed, text};

/// Number of files in each directory of a filled file system.
const FILES: usize = 200;

/// All files below a directory, but what RocksDB notes for people.
fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() {
                dirs.push(path);
            } else if !name.starts_with("LOG") && name != "LOCK" {
                found.insert(path.clone(), fs::read(&path).unwrap());
            }
        }
    }
    found
}

/// Files of the metadata by how their names begin and end.
fn meta_files(data: &Data, start: &str, end: &str) -> Vec<PathBuf> {
    let fits = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        path.parent().unwrap().ends_with("meta") && name.starts_with(start) && name.ends_with(end)
    };
    let found: Vec<_> = files(&data.path()).into_keys().filter(fits).collect();
    assert!(!found.is_empty(), "no {start}*{end}");
    found
}

/// A file system with some files, in tables and in the log.
fn filled() -> Data {
    let data = Data::formatted();
    for path in ["/first", "/second"] {
        let server = data.serve(&[]);
        with_client(&data, &server, async |client| {
            client.mkdir(path, 0o755).await.unwrap();
            for number in 0..FILES {
                client.write(&format!("{path}/{number}"), &[7; 3000]).await.unwrap();
            }
        });
        assert_eq!(server.stop(), Some(0));
    }
    data
}

fn with_client<T>(data: &Data, server: &Running, work: impl AsyncFnOnce(&Client) -> T) -> T {
    let token = fs::read_to_string(data.admin_token()).unwrap();
    let config = Config::new(vec![server.address().to_owned()], token.trim());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = Box::pin(Client::connect(config)).await.unwrap();
        let done = work(&client).await;
        client.close().await.unwrap();
        done
    })
}

fn serve_fails(dir: &Path, words: &[&str]) {
    let said = fail(1, &["serve", "--data", text(dir), "--listen", "127.0.0.1:0", "--http", "off"]);
    for word in words {
        assert!(said.contains(word), "{word}: {said}");
    }
}

/// Damages a data directory, which is refused then and left alone, and repairs it.
fn refused(data: &Data, words: &[&str], damage: impl FnOnce()) {
    let whole = files(&data.path());
    damage();
    let damaged = files(&data.path());
    assert_ne!(whole, damaged, "it is damaged");
    serve_fails(&data.path(), words);
    assert!(files(&data.path()) == damaged, "something was written");
    fs::create_dir_all(data.path().join("meta")).unwrap();
    for path in damaged.keys().filter(|path| !whole.contains_key(*path)) {
        fs::remove_file(path).unwrap();
    }
    for (path, bytes) in &whole {
        fs::write(path, bytes).unwrap();
    }
}

fn assert_serves(data: &Data) {
    let server = data.serve(&[]);
    let token = data.admin_token();
    let said = succeed(&["fsck", server.address(), "--token", text(&token), "--json"]);
    assert!(said.contains("\"findings\": []") || said.contains("\"findings\":[]"), "{said}");
    assert_eq!(server.stop(), Some(0));
}

fn flip(file: &Path, at: impl FnOnce(usize) -> usize) {
    let mut bytes = fs::read(file).unwrap();
    let at = at(bytes.len());
    bytes[at] ^= 0x55;
    fs::write(file, bytes).unwrap();
}

fn cut(file: &Path, by: usize) {
    let bytes = fs::read(file).unwrap();
    fs::write(file, &bytes[..bytes.len() - by]).unwrap();
}

const ADVICE: &str = "load a dump into another directory (`pando load`), or bring back a copy";

#[test]
fn damaged_metadata_is_refused_and_left_as_it_is() {
    let data = filled();
    let meta = data.path().join("meta");
    let manifest = meta_files(&data, "MANIFEST-", "").pop().unwrap();
    let table = meta_files(&data, "", ".sst").pop().unwrap();
    let corrupt = ["storage is corrupt", ADVICE];
    refused(&data, &corrupt, || flip(&manifest, |len| len / 2));
    refused(&data, &[ADVICE], || fs::remove_file(&manifest).unwrap());
    refused(&data, &corrupt, || fs::write(meta.join("CURRENT"), "nonsense").unwrap());
    refused(&data, &["CURRENT is missing", ADVICE], || {
        fs::remove_file(meta.join("CURRENT")).unwrap();
    });
    refused(&data, &corrupt, || cut(&table, 40));
    refused(&data, &[ADVICE], || fs::remove_file(&table).unwrap());
    refused(&data, &["meta is missing", ADVICE], || fs::remove_dir_all(&meta).unwrap());
    assert_serves(&data);
}

#[test]
fn data_of_another_version_or_program_is_refused_and_left_as_it_is() {
    let data = filled();
    let (about, meta) = (data.path().join("pando.json"), data.path().join("meta"));
    refused(&data, &["another version", "another program"], || {
        fs::write(meta.join("VERSION"), "pando rocksdb engine 2\n").unwrap();
    });
    refused(&data, &["another version", "another program"], || {
        fs::remove_file(meta.join("VERSION")).unwrap();
    });
    refused(&data, &["pando.json is damaged", ADVICE], || cut(&about, 5));
    refused(&data, &["on-disk version 99", "this program knows"], || {
        fs::write(&about, "{\"version\": 99}").unwrap();
    });
    refused(&data, &["run `pando format` first"], || fs::remove_file(&about).unwrap());
    assert_serves(&data);
}

#[test]
fn what_is_no_data_directory_is_refused_and_left_as_it_is() {
    let folder = folder();
    let thesis = folder.path().join("thesis.txt");
    fs::write(&thesis, "precious").unwrap();
    let before = files(folder.path());
    serve_fails(folder.path(), &["no file system in", "run `pando format` first"]);
    serve_fails(&thesis, &["cannot read", "Not a directory"]);
    serve_fails(&folder.path().join("missing"), &["no file system in"]);
    assert_eq!(files(folder.path()), before);
    let unreadable = folder.path().join("pando.json");
    fs::create_dir(&unreadable).unwrap();
    serve_fails(folder.path(), &["cannot read", "Is a directory"]);
    assert_eq!(files(folder.path()), before);
}

#[test]
fn a_server_serves_what_is_left_of_a_damaged_log() {
    let data = filled();
    let log = meta_files(&data, "", ".log")
        .into_iter()
        .max_by_key(|log| fs::metadata(log).unwrap().len());
    flip(&log.unwrap(), |len| len / 2);
    assert_serves(&data);
    let server = data.serve(&[]);
    let left = with_client(&data, &server, async |client| {
        let mut left = 0;
        for entry in client.read_dir("/second").await.unwrap().all().await.unwrap() {
            let number: usize = entry.name.to_string().parse().unwrap();
            left = left.max(number + 1);
        }
        // Files from before the damage are whole; the last one may have been cut short.
        for number in 0..left {
            let found = client.read(&format!("/second/{number}")).await.unwrap();
            let is_last = number + 1 == left;
            assert!(found == [7; 3000][..] || is_last && found.is_empty(), "{number}");
        }
        for number in 0..FILES {
            let found = client.read(&format!("/first/{number}")).await.unwrap();
            assert!(found == [7; 3000][..], "it is in a table");
        }
        left
    });
    // About half of the log is whole.
    assert!((FILES / 4..FILES * 3 / 4).contains(&left), "{left} of {FILES} files are left");
    assert_eq!(server.stop(), Some(0));
}
