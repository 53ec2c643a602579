//! `pando serve`, from its start to its end, and its status page.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
};

use rustix::process::Signal;

use crate::harness::{Data, Running, fail, pando, succeed, text};

pub(crate) fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("the page is there");
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("it reads requests");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    answer
}

#[test]
fn the_page_shows_the_file_system_and_its_metrics() {
    let data = Data::formatted();
    let server = data.serve(&[]);
    let health = get(server.http(), "/healthz");
    assert!(health.starts_with("HTTP/1.1 200") && health.ends_with("ok\n"), "{health}");
    let metrics = get(server.http(), "/metrics");
    for metric in ["pando_healthy 1", "pando_shards 1024", "pando_create_total 0", "pando_info{"] {
        assert!(metrics.contains(metric), "{metric}: {metrics}");
    }
    let page = get(server.http(), "/");
    assert!(page.contains("text/html") && page.contains("<h1>data</h1>"), "{page}");
    assert!(get(server.http(), "/none").starts_with("HTTP/1.1 404"));
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn the_page_can_be_left_out() {
    let data = Data::formatted();
    let server = data.serve(&["--http", "off"]);
    assert!(!server.said.contains("status page"), "{}", server.said);
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn a_server_says_where_it_listens_for_as_long_as_it_does() {
    let data = Data::formatted();
    let server = data.serve(&[]);
    let file = data.path().join("address");
    let expected = format!("{}\nhttp://{}\n", server.address(), server.http());
    assert_eq!(fs::read_to_string(&file).unwrap(), expected);
    assert_eq!(server.stop(), Some(0));
    assert!(!file.exists());
}

#[test]
fn signals_end_a_server_with_0_also_when_they_were_ignored() {
    let data = Data::formatted();
    for signal in [Signal::INT, Signal::TERM] {
        // Shells start background jobs with SIGINT ignored.
        let mut shell = std::process::Command::new("sh");
        let script = "trap '' INT TERM; exec \"$@\"";
        let mut program = pando(&["serve", "--listen", "127.0.0.1:0", "--http", "off"]);
        program.arg("--data").arg(data.path());
        shell.args(["-c", script, "sh"]).arg(program.get_program()).args(program.get_args());
        let mut server = Running::start(shell, "serving ");
        server.signal(signal);
        assert_eq!(server.wait().code(), Some(0));
    }
}

#[test]
fn a_data_directory_has_one_process_at_a_time() {
    let data = Data::formatted();
    let server = data.serve(&[]);
    let data_dir = data.path();
    let said = fail(1, &["serve", "--data", text(&data_dir), "--listen", "127.0.0.1:0"]);
    assert!(said.contains("is in use by another pando process"), "{said}");
    let said = fail(1, &["format", "--data", text(&data_dir)]);
    assert!(said.contains("is in use"), "{said}");
    assert_eq!(server.stop(), Some(0));
    assert_eq!(data.serve(&[]).stop(), Some(0));
}

#[test]
fn a_taken_port_is_an_error() {
    let data = Data::formatted();
    let other = Data::formatted();
    let server = data.serve(&[]);
    let data_dir = other.path();
    let said = fail(1, &["serve", "--data", text(&data_dir), "--listen", server.address()]);
    assert!(said.contains("cannot listen on"), "{said}");
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn several_cores_serve_together() {
    let data = Data::formatted();
    let server = data.serve(&["--cores", "3", "--durability", "strict"]);
    let token = data.admin_token();
    let bench = ["bench", "md", server.address(), "--files", "20", "--token", text(&token)];
    let rows = succeed(&[&bench[..], &["--in-flight", "4", "--shared", "--json"]].concat());
    // Ten phases, three times.
    assert_eq!(rows.lines().count(), 30, "{rows}");
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn status_is_told_to_administrators() {
    let data = Data::formatted();
    let server = data.serve(&[]);
    let token = data.admin_token();
    let status = ["status", server.address(), "--token", text(&token)];
    let shown: serde_json::Value =
        serde_json::from_str(&succeed(&[&status[..], &["--json"]].concat())).unwrap();
    assert_eq!((&shown["name"], &shown["durability"]), (&"data".into(), &"relaxed".into()));
    assert_eq!(shown["counters"]["sessions_opened"], 1);
    assert!(succeed(&status).contains("sessions"));
    assert_eq!(server.stop(), Some(0));
}
