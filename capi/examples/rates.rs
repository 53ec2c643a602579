//! Measures creates and stats of one thread, one after the other, as `rates.c` does from C.
//!
//! `rates HOST:PORT TOKEN-FILE DIR FILES`

use std::{env, fs};

use base::{FileKind, acl};
use client::{Client, Config, New};
use tokio::time::Instant;

fn main() {
    let args = env::args().collect::<Vec<_>>();
    let [_, address, token, dir, files] = &args[..] else {
        eprintln!("usage: {} HOST:PORT TOKEN-FILE DIR FILES", args[0]);
        std::process::exit(2);
    };
    let token = fs::read_to_string(token).expect("the token can be read");
    let files: u32 = files.parse().expect("a number of files");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("there is a runtime").block_on(Box::pin(async {
        let config = Config::new(vec![address.clone()], token.trim());
        let client = Client::connect(config).await.expect("a session");
        client.create_dir_all(dir, 0o755).await.expect("the directory");
        let start = Instant::now();
        for i in 0..files {
            let mode = acl::with_umask(0o644, 0o022);
            let new = New { kind: FileKind::File, mode, rdev: 0 };
            client.mknod(format!("{dir}/{i}"), new).await.expect("a file");
        }
        let created = start.elapsed();
        for i in 0..files {
            client.stat(format!("{dir}/{i}")).await.expect("its attributes");
        }
        let asked = start.elapsed() - created;
        let rate = |time: std::time::Duration| f64::from(files) / time.as_secs_f64();
        let line = format!("{:8.0} creates/s {:8.0} stats/s\n", rate(created), rate(asked));
        std::io::Write::write_all(&mut std::io::stdout(), format!("Rust  {line}").as_bytes())
            .expect("somebody reads");
        client.close().await.expect("everything was sent");
    }));
}
