//! The header that is checked in is the one that the sources make.

use std::{env, fs, path::Path};

/// With this in the environment the header is written instead of compared.
const WRITE: &str = "BLESS";

#[test]
fn the_header_is_up_to_date() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(folder.join("cbindgen.toml")).unwrap();
    let mut sources = cbindgen::Builder::new().with_config(config);
    sources = sources.with_src(folder.join("src/lib.rs"));
    let mut made = Vec::new();
    sources.generate().unwrap().write(&mut made);
    // Compilers of C90 know no other comments, and C++98 not that limit.
    let made = String::from_utf8(made).unwrap();
    let made = made.replace("// __cplusplus", "/* __cplusplus */");
    let made = made.replace("PANDO_ID_SAME UINT32_MAX", "PANDO_ID_SAME 0xffffffffu");
    let declared = |name: &str| made.matches(&format!("\nint {name}(")).count();
    assert_eq!((declared("pando_open"), declared("pando_batch_unlink")), (1, 1), "{made}");

    let header = folder.join("include/pando.h");
    if env::var_os(WRITE).is_some() {
        fs::write(&header, &made).unwrap();
    }
    let found = fs::read_to_string(&header).unwrap_or_default();
    let command = format!("{WRITE}=1 cargo test -p capi --test header");
    assert!(found == made, "{} is not what the sources make: run {command}", header.display());
}
