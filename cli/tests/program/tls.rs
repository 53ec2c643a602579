//! Encryption: what is seen on the wire, who is let in from where, and what the others are told.

use std::{
    fs,
    io::{self, Read as _, Write as _},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, mpsc},
    time::Duration,
};

use client::{Client, Config, Connector, Encryption, Tcp, connector_of};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::time::Instant;
use wire::{Answer, frame};

use crate::{
    connections::told,
    harness::{Data, Running, fail, folder, pando, pause, stderr, succeed, text, unmount},
    machines::Machines,
    mounted::Mountpoint,
    serve::get,
};

/// A proxy that keeps all bytes that go through it, in both directions.
struct Tap {
    address: String,
    seen: Arc<Mutex<Vec<u8>>>,
}

impl Tap {
    fn before(server: &str) -> Tap {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let seen: Arc<Mutex<Vec<u8>>> = Arc::default();
        let (server, kept) = (server.to_owned(), Arc::clone(&seen));
        spawn(move || {
            for near in listener.incoming() {
                let (near, far) = (near.unwrap(), TcpStream::connect(&server).unwrap());
                for (from, to) in [(&near, &far), (&far, &near)] {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let kept = Arc::clone(&kept);
                    spawn(move || carry(from, to, &kept));
                }
            }
        });
        Tap { address, seen }
    }

    fn saw(&self, what: &[u8]) -> bool {
        self.seen.lock().unwrap().windows(what.len()).any(|window| window == what)
    }

    fn bytes(&self) -> usize {
        self.seen.lock().unwrap().len()
    }
}

#[expect(clippy::disallowed_methods, reason = "a proxy of a test")]
fn spawn(work: impl FnOnce() + Send + 'static) {
    std::thread::spawn(work);
}

fn carry(mut from: TcpStream, mut to: TcpStream, kept: &Mutex<Vec<u8>>) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        kept.lock().unwrap().extend_from_slice(&buffer[..length]);
        if to.write_all(&buffer[..length]).is_err() {
            break;
        }
    }
    // The other end may have gone.
    let _ = to.shutdown(Shutdown::Write);
}

fn token_in(file: &Path) -> String {
    fs::read_to_string(file).unwrap().trim().to_owned()
}

const NAME: &str = "a-name-that-nobody-else-may-read";
const CONTENT: &str = "contents that nobody else may read; ";

/// Writes and reads a file as a native client does.
fn use_file(config: Config) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(Box::pin(async {
        let client = Client::connect(config).await.unwrap();
        let path = format!("/{NAME}");
        client.write(&path, CONTENT.repeat(3000).as_bytes()).await.unwrap();
        client.rename(&path, format!("{path}.moved")).await.unwrap();
        let bytes = client.read(format!("{path}.moved")).await.unwrap();
        assert_eq!(bytes.len(), CONTENT.len() * 3000);
        client.close().await.unwrap();
    }));
}

#[test]
fn nothing_that_is_sent_with_tls_can_be_read_on_the_way() {
    let data = Data::formatted();
    let token = token_in(&data.admin_token());
    let secrets = [token.as_bytes(), NAME.as_bytes(), CONTENT.as_bytes(), frame::MAGIC];
    // The tap sees everything where nothing is encrypted: otherwise this test shows nothing.
    let server = data.serve(&[]);
    let tap = Tap::before(server.address());
    use_file(Config::new(vec![tap.address.clone()], &*token));
    assert!(secrets.iter().all(|secret| tap.saw(secret)));
    let plain = tap.bytes();
    assert_eq!(server.stop(), Some(0));

    fs::remove_dir_all(data.path()).unwrap();
    succeed(&["format", "--data", text(&data.path())]);
    let token = token_in(&data.admin_token());
    let server = data.serve(&["--tls"]);
    let tap = Tap::before(server.address());
    let mut config = Config::new(vec![tap.address.clone()], &*token);
    let connector = connector_of(&token).unwrap();
    config.dial = Arc::new(Tcp::new(Encryption::Always(connector)));
    use_file(config);
    let secrets = [token.as_bytes(), NAME.as_bytes(), CONTENT.as_bytes(), frame::MAGIC];
    assert!(!secrets.iter().any(|secret| tap.saw(secret)));
    assert!(tap.bytes() > plain, "all of it went by the tap: {} {plain}", tap.bytes());
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn a_server_that_takes_tls_only_tells_everybody_else() {
    let (data, other) = (Data::formatted(), Data::formatted());
    let server = data.serve(&["--tls"]);
    let (address, token) = (server.address(), data.admin_token());
    let status = ["status", address, "--token", text(&token)];
    let said = fail(1, &status);
    assert!(said.contains("takes encrypted connections only: give --tls"), "{said}");
    succeed(&[&status[..], &["--tls"]].concat());
    // A client of a version without TLS reads the refusal, too.
    let answers = told(address, &frame::opening());
    assert!(
        matches!(&answers[..], [Answer::Refused(text)] if text.contains("--tls")),
        "{answers:?}"
    );
    let page = server.said.split_once("status page https://").unwrap().1.trim();
    assert!(get(page, "/readyz").contains("begins with https://"));
    // Another file system's token is not even shown to this one.
    let token_of_another = other.admin_token();
    let said = fail(1, &["status", address, "--token", text(&token_of_another), "--tls"]);
    assert!(said.contains("another authority certifies it"), "{said}");
    let both = crate::harness::run(&[&status[..], &["--tls", "--insecure"]].concat());
    assert!(stderr(&both).contains("cannot be used with"), "{}", stderr(&both));
    assert_eq!(server.stop(), Some(0));

    // TLS to a server without it, and to one of a version without it, which answers nothing of TLS.
    let plain = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = plain.local_addr().unwrap().to_string();
    spawn(move || {
        for stream in plain.incoming() {
            let mut stream = stream.unwrap();
            let mut hello = [0; 1024];
            let _ = stream.read(&mut hello).unwrap();
            // The client may have gone.
            let _ = stream.write_all(b"an answer of something else");
        }
    });
    let said = fail(1, &["status", &address, "--token", text(&token), "--tls"]);
    assert!(said.contains("no TLS is spoken there"), "{said}");
}

/// Reads the page of a server with TLS, as a scraper with this header does.
fn get_encrypted(address: &str, connector: &Connector, header: &str) -> String {
    get_page(address, "/metrics", connector, header)
}

fn get_page(address: &str, path: &str, connector: &Connector, header: &str) -> String {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let (mut stream, _) = connector.connect(stream, "ignored", None).await.unwrap();
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: x\r\n{header}Connection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        stream.flush().await.unwrap();
        let mut answer = Vec::new();
        // The server may end the connection without an end of TLS.
        let _ = stream.read_to_end(&mut answer).await;
        String::from_utf8(answer).unwrap()
    })
}

#[test]
fn machines_with_a_token_file_are_let_in_and_nothing_is_sent_in_clear() {
    let machines = Machines::new(3);
    let data = Data { folder: folder() };
    let (first, second) = (data.path(), data.folder.path().join("second"));
    succeed(&["format", "--data", text(&first), "--servers", "2"]);
    let token = data.admin_token();
    let coordinator = format!("{}:7420", Machines::host(0));
    let serve = ["serve", "--data", text(&first), "--listen", "0.0.0.0:7420"];
    let refused = machines.fail(0, &serve);
    assert!(refused.contains("--advertise the address at which they reach"), "{refused}");
    let more = ["--advertise", &coordinator, "--http", "0.0.0.0:7421", "--cluster-lease", "500ms"];
    let one = Running::start(machines.pando(0, &[&serve[..], &more].concat()), "serving ");
    let listen = format!("{}:7420", Machines::host(1));
    let join = ["serve", "--data", text(&second), "--join", &coordinator, "--token-file"];
    let join = [&join[..], &[text(&token), "--listen", &listen, "--http", "off"]].concat();
    let two = Running::start(machines.pando(1, &join), "serving ");

    // A third machine has the token file, and nothing else.
    let mount = Mountpoint::new(data.folder.path());
    let mountpoint = mount.0.clone();
    machines.succeed(2, &["mount", &coordinator, text(&mountpoint), "--token", text(&token)]);
    for directory in 0..8 {
        let directory = mountpoint.join(format!("directory-{directory}"));
        fs::create_dir(&directory).unwrap();
        fs::write(directory.join("file"), CONTENT.repeat(1000)).unwrap();
    }
    fs::rename(mountpoint.join("directory-1"), mountpoint.join("directory-0/moved")).unwrap();
    let moved = fs::read_to_string(mountpoint.join("directory-0/moved/file")).unwrap();
    assert_eq!(moved, CONTENT.repeat(1000));
    let status = ["status", &coordinator, "--token", text(&token)];
    let said = machines.succeed(2, &status);
    assert!(said.contains("state  serving"), "{said}");

    // In clear from another machine: neither the client nor the server has it.
    let said = machines.fail(2, &[&status[..], &["--insecure"]].concat());
    assert!(said.contains("takes encrypted connections only"), "{said}");
    // A token that names no authority is not shown to another machine.
    let bare = data.folder.path().join("bare");
    let key = fs::read(first.join("signing.key")).unwrap();
    fs::write(&bare, wire::Token::administrator().sign(&key)).unwrap();
    let said = machines.fail(2, &["status", &coordinator, "--token", text(&bare)]);
    assert!(said.contains("the token does not say by which authority"), "{said}");
    // On its own machine the server takes both.
    machines.succeed(0, &["status", "127.0.0.1:7420", "--token", text(&bare)]);
    machines.succeed(0, &["status", "127.0.0.1:7420", "--token", text(&token), "--tls"]);

    // The page: programs of the machine read it, others need a token for it.
    let page = format!("{}:7421", Machines::host(0));
    let pages = data.token(&["--pages"]);
    let connector = connector_of(&token_in(&token)).unwrap();
    let scraped = |token: &Path| {
        let header = format!("Authorization: Bearer {}\r\n", token_in(token));
        machines.on(2, || get_encrypted(&page, &connector, &header))
    };
    assert!(machines.on(0, || get("127.0.0.1:7421", "/metrics")).starts_with("HTTP/1.1 200"));
    let nobody = machines.on(2, || get_encrypted(&page, &connector, ""));
    assert!(nobody.starts_with("HTTP/1.1 401") && nobody.contains("--pages"), "{nobody}");
    let health = machines.on(2, || get_page(&page, "/healthz", &connector, ""));
    assert!(health.starts_with("HTTP/1.1 200"), "{health}");
    assert!(scraped(&pages).contains("pando_healthy 1"));
    assert!(scraped(&token).contains("pando_healthy 1"));
    let limited = data.token(&["--path", "/directory-0"]);
    assert!(scraped(&limited).starts_with("HTTP/1.1 401"));
    assert!(machines.on(2, || get(&page, "/metrics")).contains("begins with https://"));
    let said = machines.fail(2, &["sessions", &coordinator, "--token", text(&pages)]);
    assert!(said.contains("for status pages"), "{said}");

    unmount(&mountpoint);
    assert_eq!((two.stop(), one.stop()), (Some(0), Some(0)));
}

/// An authority of an operator's own, and certificates of it.
struct Operator {
    folder: PathBuf,
    issuer: rcgen::Issuer<'static, rcgen::KeyPair>,
}

impl Operator {
    fn new(folder: &Path) -> Operator {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::default();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        fs::write(folder.join("ca.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
        Operator { folder: folder.to_owned(), issuer: rcgen::Issuer::new(params, key) }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn certify(&self, host: &str) {
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new(vec![host.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        fs::write(self.file("key.pem"), key.serialize_pem()).unwrap();
        fs::write(self.file("cert.pem"), certificate.pem()).unwrap();
    }
}

#[test]
fn an_operators_own_certificate_is_shown_and_read_again() {
    let data = Data::formatted();
    let operator = Operator::new(data.folder.path());
    operator.certify("127.0.0.1");
    let [cert, key, ca] = ["cert.pem", "key.pem", "ca.pem"].map(|name| operator.file(name));
    let alone = crate::harness::run(&["serve", "--data", "x", "--tls-cert", text(&cert)]);
    assert!(stderr(&alone).contains("--tls-key <FILE>"), "{}", stderr(&alone));
    let own = ["--tls", "--tls-cert", text(&cert), "--tls-key", text(&key), "--tls-ca", text(&ca)];
    let server = data.serve(&own);
    assert_eq!(server.stop(), Some(0));
    // The directory keeps them.
    let server = Running::start(pando(&["serve", "--data", text(&data.path())]), "serving ");
    let token = data.admin_token();
    let status = ["status", server.address(), "--token", text(&token), "--tls"];
    let said = fail(1, &status);
    assert!(said.contains("another authority certifies it"), "{said}");
    let status = [&status[..], &["--tls-ca", text(&ca)]].concat();
    succeed(&status);
    // A certificate for another host, and then again the right one.
    operator.certify("elsewhere.example");
    let until = |wanted: bool| {
        for _ in 0..200 {
            let output = crate::harness::run(&status);
            if output.status.success() == wanted {
                return stderr(&output);
            }
            pause(Duration::from_millis(100));
        }
        panic!("the certificate is not read again");
    };
    let said = until(false);
    assert!(said.contains("is for elsewhere.example, not for 127.0.0.1"), "{said}");
    operator.certify("127.0.0.1");
    until(true);
    // A file that cannot be read does no harm while the server runs, and is named at its start.
    fs::write(&cert, "nothing").unwrap();
    pause(Duration::from_millis(2500));
    succeed(&status);
    assert_eq!(server.stop(), Some(0));
    let said = fail(1, &["serve", "--data", text(&data.path())]);
    assert!(said.contains("cert.pem: holds no certificate in PEM"), "{said}");
}

/// Resident memory of a process, in KiB.
fn resident(server: &Running) -> u64 {
    let status = format!("/proc/{}/status", server.pid().as_raw_nonzero());
    let status = fs::read_to_string(status).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Connects from an address of this machine's loopback.
fn connect_from(from: &str, to: &str) -> TcpStream {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let from: SocketAddr = format!("{from}:0").parse().unwrap();
    let to: SocketAddr = to.parse().unwrap();
    let stream = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&stream, &from).unwrap();
    connect(&stream, &to).unwrap();
    stream.into()
}

#[test]
fn a_full_server_is_waited_for_with_tls_as_without() {
    let data = Data::formatted();
    let server = data.serve(&["--tls", "--connections-max", "1"]);
    let silent = TcpStream::connect(server.address()).unwrap();
    let token = data.admin_token();
    let status = ["status", server.address(), "--token", text(&token), "--tls"];
    let mut waiting = pando(&status).spawn().unwrap();
    pause(Duration::from_secs(1));
    assert!(waiting.try_wait().unwrap().is_none(), "it is refused for good");
    drop(silent);
    assert!(waiting.wait().unwrap().success());
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn handshakes_that_never_end_cost_little_and_hold_nobody_up() {
    let data = Data::formatted();
    let server = data.serve(&["--tls"]);
    let token = data.admin_token();
    let status = ["status", server.address(), "--token", text(&token), "--tls"];
    succeed(&status);
    let before = resident(&server);
    // From an address of its own: half of the header of a ClientHello, and then nothing, over and
    // over.
    let begin = || {
        let mut stream = connect_from("127.0.0.9", server.address());
        stream.write_all(&[tls::FIRST_BYTE, 3, 1]).unwrap();
        stream
    };
    let mut begun: Vec<_> = (0..2000).map(|_| begin()).collect();
    for _ in 0..3 {
        let asked = Instant::now();
        succeed(&status);
        assert!(asked.elapsed() < Duration::from_secs(5), "it waits for handshakes of others");
        begun.extend((0..200).map(|_| begin()));
    }
    let grown = resident(&server).saturating_sub(before);
    assert!(grown < 64 << 10, "{grown} KiB for 2000 handshakes");
    let mut last = begun.last().unwrap();
    last.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let ended = last.read(&mut [0; 16]);
    assert!(!ended.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock));
    assert_eq!(server.stop(), Some(0));
}

/// Handshakes that are begun, and never go on.
const BEGUN: usize = 8000;
/// Addresses from which they come: enough of them to take all places for handshakes.
const ADDRESSES: usize = 160;
/// Handshakes that are finished, and after which nothing is said.
const FINISHED: usize = 2000;

/// The value of a metric of a server.
fn metric(server: &Running, name: &str) -> u64 {
    let metrics = get(server.http(), "/metrics");
    let value = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.unwrap().parse().unwrap()
}

/// CPU time that a process has used, in hundredths of a second.
fn cpu(server: &Running) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", server.pid())).unwrap();
    let times = stat.rsplit_once(')').unwrap().1.split_whitespace().skip(11).take(2);
    times.map(|ticks| ticks.parse::<u64>().unwrap()).sum()
}

/// Shakes hands on so many connections at once, and says nothing more.
async fn finish(
    server: &str,
    connector: &Connector,
) -> Vec<tls::ClientStream<tokio::net::TcpStream>> {
    let connect = async |number: usize| {
        let stream = connect_from(&format!("127.0.2.{}", 1 + number % 20), server);
        stream.set_nonblocking(true).unwrap();
        let stream = tokio::net::TcpStream::from_std(stream).unwrap();
        connector.connect(stream, "ignored", None).await.unwrap().0
    };
    futures::future::join_all((0..FINISHED).map(connect)).await
}

/// Whether the other end has ended a connection on which it never said anything.
fn is_ended(stream: &mut TcpStream) -> bool {
    match stream.read(&mut [0; 16]) {
        Ok(0) => true,
        Ok(_) => panic!("somebody who has not shaken hands was answered"),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => false,
        Err(_) => true,
    }
}

#[test]
fn ten_thousand_handshakes_at_once_disturb_nobody_and_end_by_themselves() {
    // Root may raise a hard limit that is lower. The server inherits it.
    let needed = u64::try_from(BEGUN + FINISHED + 4096).unwrap();
    let maximum = getrlimit(Resource::Nofile).maximum.map(|most| most.max(needed));
    let raised = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    raised.expect("this test opens 10,000 connections: raise the hard limit of open files");
    let data = Data::formatted();
    let server = data.serve(&[]);
    let (address, token) = (server.address(), data.admin_token());
    let mount = Mountpoint::new(data.folder.path());
    let mountpoint = mount.0.clone();
    succeed(&["mount", address, text(&mountpoint), "--token", text(&token), "--tls"]);
    let status = ["status", address, "--token", text(&token), "--tls"];
    succeed(&status);
    let (before, there) = (resident(&server), metric(&server, "pando_connections"));

    let began = Instant::now();
    let begin = |number: usize| {
        let mut stream = connect_from(&format!("127.0.1.{}", 1 + number % ADDRESSES), address);
        stream.write_all(&[tls::FIRST_BYTE, 3, 1]).unwrap();
        stream.set_nonblocking(true).unwrap();
        stream
    };
    let mut begun: Vec<_> = (0..BEGUN).map(begin).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let connector = connector_of(&token_in(&token)).unwrap();
    let finished = runtime.block_on(finish(address, &connector));
    let grown = resident(&server).saturating_sub(before);
    assert!(grown < 160 << 10, "{grown} KiB for {} handshakes", BEGUN + FINISHED);

    let used = cpu(&server);
    pause(Duration::from_secs(1));
    assert!(cpu(&server) - used < 50, "the server spins");
    // Clients and mounts are served as if nobody else were there.
    let mut rounds = 0;
    while metric(&server, "pando_connections") > there {
        let asked = Instant::now();
        succeed(&status);
        let file = mountpoint.join(format!("file-{rounds}"));
        fs::write(&file, CONTENT).unwrap();
        fs::remove_file(&file).unwrap();
        assert!(asked.elapsed() < Duration::from_secs(4), "handshakes of others are waited for");
        // The mount, and perhaps a command that has just ended.
        let sessions = metric(&server, "pando_sessions");
        assert!((1..=2).contains(&sessions), "{sessions} sessions");
        rounds += 1;
        assert!(began.elapsed() < Duration::from_secs(60), "the connections never end");
    }
    assert!(begun.iter_mut().all(is_ended));
    drop(finished);
    unmount(&mountpoint);
    assert_eq!(server.stop(), Some(0));
}

/// Time that bytes take in each direction of a [`Road`].
const EACH_WAY: Duration = Duration::from_millis(60);

/// A long way to a server, on which it is counted how often the client waits for it.
struct Road {
    address: String,
    seen: Arc<Mutex<Seen>>,
}

/// Traffic on a road.
#[derive(Default)]
struct Seen {
    /// Times that the client has said something after the server had.
    turns: usize,
    /// Bytes of the server's first words on the newest connection.
    first_words: usize,
    client_spoke_last: bool,
    connections: Vec<TcpStream>,
}

impl Road {
    fn to(server: &str) -> Road {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let seen: Arc<Mutex<Seen>> = Arc::default();
        let (server, counted) = (server.to_owned(), Arc::clone(&seen));
        spawn(move || {
            for near in listener.incoming() {
                let (near, far) = (near.unwrap(), TcpStream::connect(&server).unwrap());
                let mut seen = counted.lock().unwrap();
                seen.connections.push(near.try_clone().unwrap());
                (seen.client_spoke_last, seen.first_words) = (false, 0);
                for (is_client, from, to) in [(true, &near, &far), (false, &far, &near)] {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let counted = Arc::clone(&counted);
                    spawn(move || {
                        carry_slowly(from, to, |bytes| {
                            counted.lock().unwrap().count(is_client, bytes);
                        })
                    });
                }
            }
        });
        Road { address, seen }
    }

    /// Ends all connections. Counts from now on.
    fn cut(&self) {
        let mut seen = self.seen.lock().unwrap();
        for connection in seen.connections.drain(..) {
            // The client may have gone.
            let _ = connection.shutdown(Shutdown::Both);
        }
        *seen = Seen::default();
    }

    /// Round trips since the last cut, and bytes of the server's first words.
    fn counted(&self) -> (usize, usize) {
        let seen = self.seen.lock().unwrap();
        (seen.turns, seen.first_words)
    }
}

impl Seen {
    fn count(&mut self, is_client: bool, bytes: usize) {
        if is_client && !self.client_spoke_last {
            self.turns += 1;
        }
        if !is_client && self.turns == 1 {
            self.first_words += bytes;
        }
        self.client_spoke_last = is_client;
    }
}

/// Carries bytes, of which `count` is told when they are sent, and which arrive later.
fn carry_slowly(mut from: TcpStream, mut to: TcpStream, count: impl Fn(usize)) {
    let (send, arrive) = mpsc::channel::<(Instant, Vec<u8>)>();
    spawn(move || {
        for (due, bytes) in arrive {
            pause(due.saturating_duration_since(Instant::now()));
            if to.write_all(&bytes).is_err() {
                break;
            }
        }
        // The other end may have gone.
        let _ = to.shutdown(Shutdown::Write);
    });
    let mut buffer = vec![0; 1 << 16];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        count(length);
        if send.send((Instant::now() + EACH_WAY, buffer[..length].to_vec())).is_err() {
            break;
        }
    }
}

/// Round trips until a client is answered, and bytes of the server's first words: on its first
/// connection, and when that is lost on the next one.
fn connects(server: &Running, token: &Path, encryption: Encryption) -> [(usize, usize); 2] {
    let road = Road::to(server.address());
    let mut config = Config::new(vec![road.address.clone()], token_in(token));
    config.dial = Arc::new(Tcp::new(encryption));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(Box::pin(async {
        let client = Client::connect(config).await.unwrap();
        client.stat("/").await.unwrap();
        let first = road.counted();
        road.cut();
        client.stat("/").await.unwrap();
        let again = road.counted();
        client.close().await.unwrap();
        [first, again]
    }))
}

#[test]
fn encryption_takes_one_round_trip_more_and_a_lost_connection_is_resumed() {
    let data = Data::formatted();
    let (server, token) = (data.serve(&[]), data.admin_token());
    let connector = connector_of(&token_in(&token)).unwrap();
    let plain = connects(&server, &token, Encryption::Never);
    let encrypted = connects(&server, &token, Encryption::Always(connector));
    for (plain, encrypted) in plain.iter().zip(&encrypted) {
        assert_eq!(plain.0 + 1, encrypted.0, "{plain:?} {encrypted:?}");
    }
    // No certificate is sent again.
    let [(_, full), (_, resumed)] = encrypted;
    assert!(resumed * 2 < full, "{full} and {resumed} bytes");
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn a_cluster_on_one_machine_encrypts_everything_when_told_to() {
    let folder = folder();
    let dir = folder.path().join("dev");
    let mount = Mountpoint::new(folder.path());
    let mountpoint = mount.0.clone();
    let args = ["dev", "--dir", text(&dir), "--servers", "2", "--listen", "127.0.0.1:0", "--tls"];
    let mounted = ["--mount", text(&mountpoint)];
    let running = Running::start(pando(&[&args[..], &mounted].concat()), "serving ");
    fs::create_dir(mountpoint.join("a")).unwrap();
    fs::write(mountpoint.join("a/file"), CONTENT).unwrap();
    fs::rename(mountpoint.join("a"), mountpoint.join("b")).unwrap();
    assert_eq!(fs::read_to_string(mountpoint.join("b/file")).unwrap(), CONTENT);
    assert!(running.said.contains("https://") && running.said.contains(" and --tls"));
    let address = running.said.lines().find_map(|line| line.strip_prefix("server 1 at ")).unwrap();
    let address = address.split(',').next().unwrap();
    let token = dir.join("admin.token");
    let said = fail(1, &["status", address, "--token", text(&token)]);
    assert!(said.contains("takes encrypted connections only"), "{said}");
    assert_eq!(running.stop(), Some(0));
}
