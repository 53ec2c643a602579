//! The header that is checked in is the one that the sources make.

use std::{env, fs, path::Path};

/// With this in the environment the header is written instead of compared.
const WRITE: &str = "BLESS";

#[test]
fn the_header_is_up_to_date() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(folder.join("cbindgen.toml")).unwrap();
    let mut sources = cbindgen::Builder::new().with_config(config);
    // The order of the header; files that export nothing are not in it.
    let files = [
        "lib",
        "types",
        "error",
        "options",
        "connect",
        "fs",
        "paths",
        "xattr",
        "dir",
        "file",
        "lock",
        "batch",
        "batch/add",
    ];
    for file in files {
        sources = sources.with_src(folder.join(format!("src/{file}.rs")));
    }
    let mut made = Vec::new();
    sources.generate().unwrap().write(&mut made);
    let made = String::from_utf8(made).unwrap();
    assert!(made.contains("pando_batch_unlink"), "{made}");

    let header = folder.join("include/pando.h");
    if env::var_os(WRITE).is_some() {
        fs::write(&header, &made).unwrap();
    }
    let found = fs::read_to_string(&header).unwrap_or_default();
    let command = format!("{WRITE}=1 cargo test -p capi --test header");
    assert!(found == made, "{} is not what the sources make: run {command}", header.display());
}
