//! A floor of caches over a network: memcached, asked by one client.
//!
//! The program of that name is started on a port of its own, and ends with [`Memcached`].

use std::{
    io::{self, BufRead as _, BufReader, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// Time for the program to start.
const START_WITHIN: Duration = Duration::from_secs(10);
/// Pause between looks whether it has.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Bytes of each value.
const VALUE_BYTES: usize = 100;

/// A memcached with one thread.
pub struct Memcached {
    child: Child,
    connection: BufReader<TcpStream>,
}

impl Memcached {
    /// Starts it on this machine; `None` where it is not installed.
    ///
    /// # Errors
    /// When it does not start.
    pub fn start() -> io::Result<Option<Memcached>> {
        // A port that was free a moment ago.
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let mut command = Command::new("memcached");
        command.args(["-u", "nobody", "-t", "1", "-m", "512", "-U", "0", "-l", "127.0.0.1", "-p"]);
        command.arg(address.port().to_string()).stdin(Stdio::null()).stdout(Stdio::null());
        let child = match command.stderr(Stdio::null()).spawn() {
            Ok(child) => child,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut started = Started(Some(child));
        let stream = started.connect(address)?;
        stream.set_nodelay(true)?;
        let child = started.0.take().expect("it was started");
        Ok(Some(Memcached { child, connection: BufReader::new(stream) }))
    }

    /// Sets a key to a value of 100 bytes, and waits for the answer.
    ///
    /// # Errors
    /// When it was not stored.
    pub fn set(&mut self, key: &str) -> io::Result<()> {
        let mut message = format!("set {key} 0 0 {VALUE_BYTES}\r\n").into_bytes();
        message.resize(message.len() + VALUE_BYTES, b'x');
        message.extend_from_slice(b"\r\n");
        self.connection.get_mut().write_all(&message)?;
        let mut answer = String::new();
        self.connection.read_line(&mut answer)?;
        if answer == "STORED\r\n" { Ok(()) } else { Err(io::Error::other(answer)) }
    }
}

impl Drop for Memcached {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// A program that ends where it is of no use.
struct Started(Option<Child>);

impl Started {
    #[expect(clippy::disallowed_methods, reason = "another program tells no time when it is ready")]
    fn connect(&mut self, address: SocketAddr) -> io::Result<TcpStream> {
        let until = Instant::now() + START_WITHIN;
        loop {
            match TcpStream::connect(address) {
                Err(error) if Instant::now() >= until => return Err(error),
                Err(_) => thread::sleep(LOOK_EVERY),
                Ok(stream) => return Ok(stream),
            }
        }
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            drop(child.kill());
            drop(child.wait());
        }
    }
}
