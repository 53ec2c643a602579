//! `pando dump` and `pando load`.

use std::{fs, os::unix::fs::MetadataExt as _, path::Path, process::Command};

use crate::{
    harness::{fail, folder, succeed, text},
    mounted::{Mountpoint, up},
};

/// Names, attributes and contents below a directory, as text.
fn listing(top: &Path) -> String {
    let script = "find . -printf '%p %y %m %U %G %n %s %T@ %l\\n' | sort; \
                  find . -type f | sort | xargs -r -d '\\n' cat | cksum";
    let output = Command::new("sh").arg("-c").arg(script).current_dir(top).output();
    let output = output.expect("there is a shell");
    assert!(output.status.success());
    String::from_utf8(output.stdout).expect("names of tests are text")
}

#[test]
fn a_dump_with_contents_is_loaded_into_an_equal_file_system() {
    let folder = folder();
    let mount = Mountpoint::new(folder.path());
    let data = folder.path().join("data");
    let running = up(&data, &mount);
    let at = |path: &str| mount.0.join(path);
    fs::create_dir_all(at("a/b")).unwrap();
    fs::write(at("a/small"), "small").unwrap();
    fs::write(at("a/b/large"), [b'x'; 200_000]).unwrap();
    assert!(Command::new("mkfifo").arg(at("a/fifo")).status().unwrap().success());
    fs::hard_link(at("a/small"), at("a/b/second")).unwrap();
    std::os::unix::fs::symlink("a/b", at("link")).unwrap();
    let file = folder.path().join("dump");
    let token = data.join("admin.token");
    fs::File::open(&mount.0).unwrap().sync_all().unwrap();
    let dump = ["dump", running.address(), text(&file), "--token", text(&token)];
    succeed(&[&dump[..], &["--contents"]].concat());
    let before = listing(&mount.0);
    assert_eq!(running.stop(), Some(0));

    let copy = folder.path().join("copy");
    let said = succeed(&["load", "--data", text(&copy), text(&file)]);
    assert!(said.contains("loaded data in") && said.contains(", 1 blocks"), "{said}");
    let again = up(&copy, &mount);
    assert_eq!(listing(&mount.0), before);
    assert_eq!(fs::metadata(at("a/small")).unwrap().nlink(), 2);
    succeed(&["fsck", again.address(), "--token", text(&copy.join("admin.token"))]);
    assert_eq!(again.stop(), Some(0));

    // Nothing comes of one that is cut off or changed, and nothing is overwritten.
    let bytes = fs::read(&file).unwrap();
    let load = |name: &str, bytes: &[u8]| {
        let (file, to) = (folder.path().join(name), folder.path().join(format!("{name}.data")));
        fs::write(&file, bytes).unwrap();
        let said = fail(1, &["load", "--data", text(&to), text(&file)]);
        assert!(!to.join("pando.json").exists());
        said
    };
    for end in [bytes.len() - 1, bytes.len() / 2, 100] {
        assert!(load("cut", &bytes[..end]).contains("cut off"));
    }
    let longer = [&bytes[..], b"more"].concat();
    assert!(load("longer", &longer).contains("something comes after its end"));
    let mut changed = bytes.clone();
    changed[bytes.len() / 2] ^= 1;
    assert!(load("changed", &changed).contains("damaged"));
    let mut newer = bytes;
    newer[10] = 2;
    assert!(load("newer", &newer).contains("has version 2, this program knows 1"));
    assert!(load("other", b"something else").contains("no dump of pando"));
    let said = fail(1, &["load", "--data", text(&copy), text(&file)]);
    assert!(said.contains("there is a file system already"), "{said}");
}
