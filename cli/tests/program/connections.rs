//! Connections that are not as they should be: too many, of another version, of bytes that mean
//! nothing.

use std::{
    fs::{self, File},
    io::{Read as _, Write as _},
    net::TcpStream,
    path::Path,
    process::Command,
    time::Duration,
};

use bytes::BytesMut;
use rustix::process::{Resource, Rlimit, getrlimit, prlimit, setrlimit};
use wire::{Answer, Hello, Reply, ReplyHeader, Request, RequestHeader, Retry, frame};

use crate::{
    harness::{Data, Running, pando, pause, succeed, text},
    serve::get,
};

/// Returns the server's answers to `bytes` before it ends the connection.
pub(crate) fn told(address: &str, bytes: &[u8]) -> Vec<Answer> {
    let mut stream = TcpStream::connect(address).unwrap();
    // The time-out makes a server that waits fail the test in place of stopping it.
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    // The server may have ended it before everything is sent.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut said = Vec::new();
    match stream.read_to_end(&mut said) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}"),
    }
    let mut said = BytesMut::from(&said[..]);
    std::iter::from_fn(|| frame::take_frame(&mut said).unwrap())
        .map(|bytes| ReplyHeader::take(&bytes).unwrap().1)
        .collect()
}

#[test]
fn bytes_that_mean_nothing_end_their_connection_and_no_other() {
    let data = Data::formatted();
    let server = data.serve(&[]);
    let token = data.admin_token();
    let framed = |body: &[u8]| {
        let mut bytes = frame::opening().to_vec();
        frame::put_frame(&mut bytes, |out| out.extend_from_slice(body));
        bytes
    };
    let long = [&frame::opening()[..], &u32::MAX.to_le_bytes()].concat();
    let http = b"GET / HTTP/1.1\r\n\r\n".to_vec();
    for bytes in [Vec::new(), vec![0xff; 5000], http, long, framed(&[0xff; 300]), framed(b"")] {
        assert_eq!(told(server.address(), &bytes), []);
    }
    let mut other = frame::opening();
    other[frame::MAGIC.len()] = 99;
    let said = told(server.address(), &other);
    assert!(
        matches!(&said[..], [Answer::Refused(text)] if text.contains("protocol version 99")),
        "{said:?}"
    );
    succeed(&["status", server.address(), "--token", text(&token)]);
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn connections_beyond_the_limit_are_told_to_wait_until_others_end() {
    let data = Data::formatted();
    let server = data.serve(&["--connections-max", "300"]);
    let connect = || TcpStream::connect(server.address()).unwrap();
    let mut silent: Vec<_> = (0..300).map(|_| connect()).collect();
    // The connections say nothing, so that on a slow machine the server may have ended some.
    while told(server.address(), &frame::opening()) != [Answer::Retry(Retry::Busy)] {
        silent.push(connect());
        assert!(silent.len() < 3000, "there is no limit");
    }
    drop(silent);
    // The server notices in its own time.
    let token = data.admin_token();
    while told(server.address(), &frame::opening()) == [Answer::Retry(Retry::Busy)] {
        pause(Duration::from_millis(10));
    }
    succeed(&["status", server.address(), "--token", text(&token)]);
    assert_eq!(server.stop(), Some(0));
}

/// A connection with a session, or on its way to one.
struct Session {
    stream: TcpStream,
    inbox: BytesMut,
}

impl Session {
    /// Connects and says Hello; the answer is still to come.
    fn asked(address: &str, data: &Data) -> Session {
        let token = fs::read_to_string(data.admin_token()).unwrap().trim().to_owned();
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.write_all(&frame::opening()).unwrap();
        let mut session = Session { stream, inbox: BytesMut::new() };
        let client = "test".to_owned();
        session.send(&Request::Hello(Hello { token, client, resume: None, kernel_checks: false }));
        session
    }

    fn send(&mut self, request: &Request) {
        let mut out = Vec::new();
        let header = RequestHeader { epoch: base::Epoch(1), ..RequestHeader::bare(1) };
        assert!(header.put(request, &mut out));
        self.stream.write_all(&out).unwrap();
    }

    fn answer(&mut self) -> Answer {
        loop {
            if let Some(bytes) = frame::take_frame(&mut self.inbox).unwrap() {
                return ReplyHeader::take(&bytes).unwrap().1;
            }
            let mut bytes = [0; 4096];
            let len = self.stream.read(&mut bytes).unwrap();
            assert!(len > 0, "the connection was ended");
            self.inbox.extend_from_slice(&bytes[..len]);
        }
    }

    fn open(address: &str, data: &Data) -> Session {
        let mut session = Session::asked(address, data);
        assert!(matches!(session.answer(), Answer::Done(Reply::Welcome(_))));
        session
    }

    fn works(&mut self) {
        for request in [Request::Ping, Request::Sync] {
            self.send(&request);
            assert_eq!(self.answer(), Answer::Done(Reply::Nothing));
        }
    }
}

/// Starts a server whose log goes to a file, from a shell that runs `before`.
fn logged(data: &Data, before: &str, more: &[&str]) -> (Running, std::path::PathBuf) {
    let log = data.folder.path().join("log");
    let mut program = pando(&["serve", "--listen", "127.0.0.1:0", "--http", "off", "--cores", "1"]);
    program.args(more).arg("--data").arg(data.path());
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("{before}; exec \"$@\""), "sh"]);
    shell.arg(program.get_program()).args(program.get_args());
    shell.stderr(File::create(&log).unwrap());
    (Running::start(shell, "serving "), log)
}

fn wait_for(log: &Path, words: &str) {
    for _ in 0..1200 {
        if fs::read_to_string(log).unwrap().contains(words) {
            return;
        }
        pause(Duration::from_millis(50));
    }
    panic!("the log never says {words}: {}", fs::read_to_string(log).unwrap());
}

#[test]
fn with_few_files_those_who_are_there_go_on_and_others_wait() {
    let data = Data::formatted();
    let (server, log) = logged(&data, "ulimit -n 128", &["--connections-max", "100000"]);
    let mut session = Session::open(server.address(), &data);
    let connect = || TcpStream::connect(server.address()).unwrap();
    let mut silent: Vec<_> = (0..64).map(|_| connect()).collect();
    while told(server.address(), &frame::opening()) != [Answer::Retry(Retry::Busy)] {
        silent.push(connect());
        assert!(silent.len() < 3000, "there is no limit");
    }
    session.works();
    wait_for(&log, "no more connections are taken: the limit of open files");
    drop(silent);
    while told(server.address(), &frame::opening()) == [Answer::Retry(Retry::Busy)] {
        pause(Duration::from_millis(10));
    }
    Session::open(server.address(), &data).works();
    session.works();
    wait_for(&log, "there is room for connections again");
    assert_eq!(server.stop(), Some(0));
}

/// CPU time that a process has used, in hundredths of a second.
fn cpu(server: &Running) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", server.pid())).unwrap();
    let times = stat.rsplit_once(')').unwrap().1.split_whitespace().skip(11).take(2);
    times.map(|ticks| ticks.parse::<u64>().unwrap()).sum()
}

#[test]
fn without_files_new_connections_wait_in_the_kernel_and_nothing_spins() {
    let data = Data::formatted();
    let (server, log) = logged(&data, ":", &[]);
    let mut session = Session::open(server.address(), &data);
    let all = Rlimit { current: Some(3), maximum: getrlimit(Resource::Nofile).maximum };
    let before = prlimit(Some(server.pid()), Resource::Nofile, all).unwrap();
    let mut waiting = Session::asked(server.address(), &data);
    wait_for(&log, "cannot accept connections; those there are go on");
    session.works();
    let used = cpu(&server);
    pause(Duration::from_secs(1));
    assert!(cpu(&server) - used < 50, "it spins");
    prlimit(Some(server.pid()), Resource::Nofile, before).unwrap();
    assert!(matches!(waiting.answer(), Answer::Done(Reply::Welcome(_))));
    waiting.works();
    session.works();
    wait_for(&log, "connections are accepted again");
    let said = fs::read_to_string(&log).unwrap();
    assert_eq!(said.matches("cannot accept connections").count(), 1, "{said}");
    assert_eq!(server.stop(), Some(0));
}

const COUNT: u64 = 10_000;

#[test]
fn ten_thousand_connections_that_say_nothing_disturb_nobody() {
    // Root may raise a hard limit that is lower. The server inherits it.
    let maximum = getrlimit(Resource::Nofile).maximum.map(|most| most.max(COUNT + 4096));
    let raised = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    raised.expect("this test opens 10,000 connections: raise the hard limit of open files");
    let data = Data::formatted();
    let server = data.serve(&[]);
    let mut session = Session::open(server.address(), &data);
    let mut silent = Vec::new();
    while silent.len() < usize::try_from(COUNT).unwrap() {
        silent.extend((0..100).map(|_| TcpStream::connect(server.address()).unwrap()));
        session.works();
    }
    Session::open(server.address(), &data).works();
    // The connections stay silent, so the server ends them all by itself.
    let connections = || {
        let metrics = get(server.http(), "/metrics");
        let line =
            metrics.lines().find_map(|line| line.strip_prefix("pando_connections ")).unwrap();
        line.parse::<u64>().unwrap()
    };
    for _ in 0..1200 {
        session.works();
        if connections() == 1 {
            break;
        }
        pause(Duration::from_millis(50));
    }
    assert_eq!(connections(), 1, "of {COUNT}");
    assert_eq!(server.stop(), Some(0));
}
