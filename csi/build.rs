//! Makes Rust of the protocols in `proto/`. The compiler for them is a crate, so that building needs
//! no `protoc`.

use std::{env, error::Error, path::Path};

fn main() -> Result<(), Box<dyn Error>> {
    let files = ["proto/csi.proto", "proto/keeper.proto"];
    for file in files {
        println!("cargo::rerun-if-changed={file}");
    }
    let mut compiler = protox::Compiler::new(["proto"])?;
    // Comments of the specification are no Markdown, and its examples no Rust.
    compiler.include_imports(true).include_source_info(false).open_files(files)?;
    let out = env::var_os("OUT_DIR").ok_or("cargo names a folder")?;
    let build = tonic_prost_build::configure().out_dir(Path::new(&out)).btree_map(".");
    Ok(build.compile_fds(compiler.file_descriptor_set())?)
}
