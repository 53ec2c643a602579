//! libpando as a program in C meets it: header, libraries, pkg-config and examples, as installed.
//!
//! Cargo builds the library for these tests beside what else they depend on.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use tempfile::TempDir;

use crate::harness::{Data, Running, folder, pando, stderr, text};

const STRICT: [&str; 4] = ["-Wall", "-Wextra", "-Werror", "-pthread"];

fn capi() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../capi")
}

/// Where cargo puts libraries that tests depend on.
fn libraries() -> PathBuf {
    let program = PathBuf::from(pando(&[]).get_program());
    program.parent().unwrap().join("deps")
}

/// An installation of the library, and a server for its programs.
struct C {
    root: TempDir,
    data: Data,
    server: Running,
}

impl C {
    fn installed() -> C {
        let data = Data::formatted();
        let server = data.serve(&[]);
        let c = C { root: folder(), data, server };
        c.install(&[]);
        c
    }

    fn install(&self, args: &[&str]) {
        let mut install = Command::new(capi().join("../scripts/install"));
        install.args(args).env("DESTDIR", self.root.path()).env("PREFIX", "/usr");
        install.env("PANDO", pando(&[]).get_program()).env("LIBPANDO", libraries());
        succeeded(&install.output().unwrap());
    }

    fn there(&self, path: &str) -> PathBuf {
        self.root.path().join(path)
    }

    /// Answers of pkg-config about what is installed.
    fn pkg_config(&self, args: &[&str]) -> Vec<String> {
        let mut command = Command::new("pkg-config");
        command.args(args).arg("pando").env("PKG_CONFIG_SYSROOT_DIR", self.root.path());
        command.env("PKG_CONFIG_PATH", self.there("usr/lib/pkgconfig"));
        let said = succeeded(&command.output().unwrap());
        said.split_whitespace().map(str::to_owned).collect()
    }

    /// Compiles a program with the installed library.
    fn compile(&self, compiler: &str, source: &Path, args: &[&str]) -> PathBuf {
        let name = source.file_stem().unwrap().to_str().unwrap();
        let program = self.there(&format!("{name}-{compiler}"));
        let mut command = Command::new(compiler);
        command.args(STRICT).args(args).arg(source).arg("-o").arg(&program);
        command.args(self.pkg_config(&["--cflags", "--libs"]));
        succeeded(&command.output().unwrap());
        program
    }

    fn run(&self, program: &Path, args: &[&str]) -> String {
        let token = self.data.admin_token();
        let mut command = Command::new(program);
        command.args([self.server.address(), text(&token)]).args(args);
        command.env("LD_LIBRARY_PATH", self.there("usr/lib"));
        succeeded(&command.output().unwrap())
    }
}

fn succeeded(output: &Output) -> String {
    assert!(output.status.success(), "{:?}: {}", output.status, stderr(output));
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn programs_in_c_are_built_with_what_is_installed_and_work() {
    let c = C::installed();
    assert_eq!(c.pkg_config(&["--modversion"]), [env!("CARGO_PKG_VERSION")]);
    let link = fs::read_link(c.there("usr/lib/libpando.so")).unwrap();
    assert_eq!(link, Path::new("libpando.so.0"));

    for test in ["functions", "batches"] {
        let source = capi().join(format!("tests/c/{test}.c"));
        let program = c.compile("cc", &source, &["-std=c11"]);
        assert_eq!(c.run(&program, &[]), "ok\n", "{test}");
    }

    let compile = |name: &str| {
        let source = capi().join(format!("examples/{name}.c"));
        c.compile("cc", &source, &["-std=c11", "-O2"])
    };
    let (copy, list) = (compile("copy_in"), compile("list"));
    let (from, to) = (c.there("from"), c.there("to"));
    fs::write(&from, vec![7; 3_000_001]).unwrap();
    let said = c.run(&copy, &[text(&from), "/copied", text(&to)]);
    assert!(said.starts_with("/copied: 3000001 bytes"), "{said}");
    assert!(fs::read(&from).unwrap() == fs::read(&to).unwrap());
    let said = c.run(&list, &["/"]);
    assert!(said.contains("100644    3000001 copied"), "{said}");
    let said = c.run(&compile("batch_stat"), &["/batch", "1000", "100000"]);
    assert!(said.contains("\n100000 stats: "), "{said}");
    let said = c.run(&compile("rates"), &["/rates", "100"]);
    assert!(said.starts_with("C "), "{said}");

    c.install(&["--remove"]);
    for gone in ["include/pando.h", "lib/libpando.so.0", "lib/pkgconfig/pando.pc"] {
        assert!(!c.there("usr").join(gone).exists(), "{gone}");
    }
}

#[test]
fn the_header_is_one_for_cpp_and_the_library_can_be_linked_statically() {
    let c = C::installed();
    let source = c.there("version.cc");
    let text = "#include <pando.h>\nint main() { return pando_version() == nullptr; }\n";
    fs::write(&source, text).unwrap();
    let program = c.compile("c++", &source, &["-std=c++17", "-pedantic"]);
    c.run(&program, &[]);

    // Without the shared library the linker takes the other one.
    fs::remove_file(c.there("usr/lib/libpando.so")).unwrap();
    let source = capi().join("examples/list.c");
    let rest = c.pkg_config(&["--static", "--libs-only-l"]);
    let rest = rest.iter().map(String::as_str).filter(|arg| *arg != "-lpando");
    // Other crates of the workspace turn on RocksDB in this build. What is installed has none.
    let args =
        ["-std=c11", "-Wl,--no-as-needed", "-lstdc++"].into_iter().chain(rest).collect::<Vec<_>>();
    let program = c.compile("cc", &source, &args);
    fs::remove_file(c.there("usr/lib/libpando.so.0")).unwrap();
    assert_eq!(c.run(&program, &["/"]), "");
}

#[test]
fn programs_in_c_touch_no_memory_that_is_not_theirs() {
    let c = C::installed();
    for test in ["functions", "batches"] {
        let source = capi().join(format!("tests/c/{test}.c"));
        let program = c.compile("cc", &source, &["-std=c11", "-g", "-fsanitize=address"]);
        assert_eq!(c.run(&program, &[]), "ok\n", "{test}");
    }
}
