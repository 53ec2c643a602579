//! Views of an administrator: metrics, the page, `status`, `top`, `profile`, `sessions`, `opens`.

use std::{
    collections::BTreeSet,
    io::{Read as _, Write as _},
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use client::{Client, Config, OpenOptions};
use rustix::{
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{LocalModes, tcgetattr},
};
use serde_json::Value;

use crate::{
    harness::{Data, Running, fail, folder, pando, pause, succeed, text},
    serve::get,
};

/// The body of a page.
fn body(server: &Running, path: &str) -> String {
    let answer = get(server.http(), path);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    answer.split_once("\r\n\r\n").expect("headers end").1.to_owned()
}

/// Makes, lists and removes some files.
fn work(data: &Data, server: &Running) {
    let token = data.admin_token();
    let bench = ["bench", "md", server.address(), "--files", "50", "--token", text(&token)];
    succeed(&[&bench[..], &["--in-flight", "4", "--json"]].concat());
}

fn value(metrics: &str, sample: &str) -> f64 {
    let line = metrics.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {sample} in {metrics}")).parse().expect("it is a number")
}

fn families(metrics: &str) -> BTreeSet<&str> {
    let types = metrics.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    types.filter_map(|line| line.split(' ').next()).collect()
}

fn document(name: &str) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name);
    std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Everything in a text that looks like the name of a metric.
fn names(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words.filter(|word| word.starts_with("pando_")).collect()
}

/// The family of a sample's name.
fn family<'a>(families: &BTreeSet<&str>, name: &'a str) -> Option<&'a str> {
    let ends = ["", "_bucket", "_sum", "_count"];
    ends.iter().filter_map(|end| name.strip_suffix(end)).find(|name| families.contains(name))
}

#[test]
fn metrics_move_with_the_work_and_their_buckets_are_cumulative() {
    let data = Data::formatted();
    let server = data.serve(&[]);
    work(&data, &server);
    let metrics = body(&server, "/metrics");
    assert!(
        value(&metrics, "pando_operations_total{operation=\"create\",outcome=\"done\"}") >= 50.0
    );
    let failed = "pando_operations_total{operation=\"create\",outcome=\"E";
    assert!(!metrics.contains(failed), "none has failed: {metrics}");
    for moved in [
        "pando_operation_seconds_sum{operation=\"create\"}",
        "pando_operation_stage_seconds_total{operation=\"create\",stage=\"execute\"}",
        "pando_group_requests_count",
        "pando_group_bytes_sum",
        "pando_store_write_seconds_count",
        "pando_received_bytes_total",
        "pando_sent_bytes_total",
        "pando_space_bytes",
        "pando_requests_total",
        "pando_connections_total",
    ] {
        assert!(value(&metrics, moved) > 0.0, "{moved}");
    }
    let mut last: Option<(String, f64)> = None;
    let mut buckets = 0;
    for line in metrics.lines().filter(|line| line.contains("_bucket{")) {
        let (labels, count) = line.rsplit_once(' ').unwrap();
        let series = labels.split("le=").next().unwrap().to_owned();
        let count: f64 = count.parse().unwrap();
        if let Some((before, below)) = &last {
            assert!(*before != series || *below <= count, "{line}");
        }
        if labels.contains("le=\"+Inf\"") {
            let all = series.replace("_bucket", "_count").replace(",}", "}");
            let all = all.strip_suffix(',').map_or(all.clone(), |all| format!("{all}}}"));
            assert_eq!(value(&metrics, all.trim_end_matches('{')), count, "{line}");
        }
        buckets += 1;
        last = Some((series, count));
    }
    assert!(buckets > 100, "{buckets}");
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn the_documents_and_the_dashboard_name_the_metrics_there_are() {
    let data = Data { folder: folder() };
    let (place, contents) = (data.folder.path().join("store"), data.folder.path().join("contents"));
    succeed(&["format", "--data", text(&data.path()), "--blocks", text(&contents)]);
    let audit = data.folder.path().join("audit");
    let server = data.serve(&["--journal", text(&place), "--audit", text(&audit)]);
    work(&data, &server);
    let mut metrics = body(&server, "/metrics");
    // The first base is made beside the work.
    while !metrics.contains("pando_backup_age_seconds") {
        pause(Duration::from_millis(20));
        metrics = body(&server, "/metrics");
    }
    let families = families(&metrics);
    let page = document("docs/MONITORING.md");
    let documented: BTreeSet<&str> =
        names(&page).into_iter().filter_map(|name| family(&families, name)).collect();
    // Counters of the kinds of operations are described together.
    let counter = |name: &str| metrics.contains(&format!("# HELP {name} Requests of the kind "));
    let missing: Vec<_> = families.difference(&documented).filter(|name| !counter(name)).collect();
    assert!(missing.is_empty(), "docs/MONITORING.md says nothing of {missing:?}");
    for (file, text) in [
        ("docs/MONITORING.md", page.clone()),
        ("contrib/grafana/pando.json", document("contrib/grafana/pando.json")),
        ("contrib/prometheus/alerts.yml", document("contrib/prometheus/alerts.yml")),
    ] {
        let named = names(&text);
        assert!(named.len() > 5, "{file} names metrics");
        for name in named {
            assert!(family(&families, name).is_some(), "{file}: there is no {name}");
        }
    }
    let alerts = document("contrib/prometheus/alerts.yml");
    for wanted in ["expr: up{", "absent(pando_info)", "pando_ready == 0", "pando_servers_silent"] {
        assert!(alerts.contains(wanted), "no alert has {wanted}");
    }
    let dashboard: Value = serde_json::from_str(&document("contrib/grafana/pando.json")).unwrap();
    assert!(dashboard["panels"].as_array().is_some_and(|panels| panels.len() >= 8));
    assert_eq!(server.stop(), Some(0));
}

/// Runs Prometheus' own tool, which must find nothing wrong.
fn promtool(args: &[&str], input: &str) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let fetched = root.join("target/tools/promtool");
    let program = if fetched.exists() { text(&fetched) } else { "promtool" };
    let mut command = Command::new(program);
    command.args(args).current_dir(root.join("contrib/prometheus"));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut tool = command.spawn().expect("`scripts/deps test` fetches promtool");
    tool.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = tool.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].map(|out| String::from_utf8_lossy(&out).into_owned());
    assert!(output.status.success(), "{args:?}: {said:?}");
}

#[test]
fn prometheus_takes_the_metrics_and_each_fault_raises_its_alert() {
    let data = Data::formatted();
    let server = data.serve(&[]);
    work(&data, &server);
    fail_some(&data, &server);
    promtool(&["check", "metrics"], &body(&server, "/metrics"));
    promtool(&["check", "rules", "alerts.yml"], "");
    promtool(&["test", "rules", "alerts_test.yml"], "");
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn health_and_readiness_are_told() {
    let data = Data::formatted();
    let server = data.serve(&[]);
    assert_eq!(body(&server, "/healthz"), "ok\n");
    assert_eq!(body(&server, "/readyz"), "ok\n");
    let metrics = body(&server, "/metrics");
    assert_eq!((value(&metrics, "pando_healthy"), value(&metrics, "pando_ready")), (1.0, 1.0));
    assert_eq!(server.stop(), Some(0));
}

/// Makes requests that fail: three names that are taken, and two that are not there.
fn fail_some(data: &Data, server: &Running) {
    let secret = std::fs::read_to_string(data.admin_token()).unwrap();
    let config = Config::new(vec![server.address().to_owned()], secret.trim().to_owned());
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = Box::pin(Client::connect(config)).await.unwrap();
        client.mkdir("/taken", 0o755).await.unwrap();
        for _ in 0..3 {
            client.mkdir("/taken", 0o755).await.unwrap_err();
        }
        for _ in 0..2 {
            client.rmdir("/none").await.unwrap_err();
        }
        client.close().await.unwrap();
    });
}

#[test]
fn a_browser_shows_the_page_with_numbers() {
    let data = Data::formatted();
    let server = data.serve(&[]);
    work(&data, &server);
    fail_some(&data, &server);
    let page = format!("http://{}/", server.http());
    let seen = folder();
    let browse = |profile: &str, more: &[&str]| {
        let user = format!("--user-data-dir={}", text(&seen.path().join(profile)));
        let output = Command::new("chromium")
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic"])
            .args(["--no-first-run", "--disable-background-networking", "--disable-sync"])
            .args(["--disable-component-update", "--disable-dev-shm-usage"])
            .args(["--virtual-time-budget=5000", "--window-size=1200,1400", &user])
            .args(more)
            .arg(&page)
            .stdin(Stdio::null())
            .output()
            .expect("chromium is installed by scripts/deps");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let dom = browse("dom", &["--dump-dom"]);
    assert!(dom.contains("<span id=\"state\" class=\"\">serving</span>"), "{dom}");
    for shown in [
        "<h1>data</h1>",
        "<td>create</td>",
        "<td>lookup</td>",
        "metadata on disk",
        "p99, last minute",
    ] {
        assert!(dom.contains(shown), "{shown}: {dom}");
    }
    let cells = dom.split("<td>create</td>").nth(1).unwrap();
    let cells: Vec<&str> = cells.split("class=\"n\">").skip(1).take(2).collect();
    // The errors by kind: those of a missing name apart from the others, with their operations.
    let rows: Vec<&str> =
        dom.split("<table id=\"errors\">").nth(1).unwrap().split("<tr>").collect();
    let row = |kind: &str| {
        let found = rows.iter().position(|row| row.starts_with(&format!("<td>{kind}</td>")));
        found.unwrap_or_else(|| panic!("no {kind} in {rows:?}"))
    };
    let (taken, none) = (row("EEXIST"), row("ENOENT (no such name)"));
    assert!(taken < none, "{rows:?}");
    assert!(rows[taken].contains(">3</td><td class=\"n\">mkdir 3</td>"), "{rows:?}");
    assert!(rows[none].contains("rmdir 2"), "{rows:?}");
    let total: u64 = cells[1].split('<').next().unwrap().replace(',', "").parse().unwrap();
    assert!(total >= 50, "{cells:?}");
    assert!(!dom.contains("NaN") && !dom.contains("undefined"), "{dom}");

    let shot = seen.path().join("page.png");
    browse("shot", &[&format!("--screenshot={}", text(&shot))]);
    if let Some(keep) = std::env::var_os("PANDO_SCREENSHOT") {
        std::fs::copy(&shot, keep).unwrap();
    }
    let colours = colours(&shot);
    assert!(colours > 30, "the screenshot is blank: it has {colours} colours");
    assert_eq!(server.stop(), Some(0));
}

/// How many colours a picture has.
fn colours(file: &Path) -> usize {
    let file = std::io::BufReader::new(std::fs::File::open(file).expect("there is a picture"));
    let mut reader = png::Decoder::new(file).read_info().expect("it is a PNG");
    let mut pixels = vec![0; reader.output_buffer_size().expect("it fits in memory")];
    let frame = reader.next_frame(&mut pixels).expect("it has a picture");
    let size = frame.buffer_size();
    let width = size / (frame.width * frame.height) as usize;
    pixels[..size].chunks(width).collect::<BTreeSet<_>>().len()
}

#[test]
fn the_page_is_fed_with_numbers_and_without_paths() {
    let data = Data::formatted();
    let server = data.serve(&[]);
    work(&data, &server);
    fail_some(&data, &server);
    let page: Value = serde_json::from_str(&body(&server, "/status.json")).unwrap();
    assert_eq!((&page["name"], &page["problem"]), (&"data".into(), &Value::Null));
    let create = page["operations"].as_array().unwrap().iter().find(|row| row["name"] == "create");
    let create = create.expect("files were made");
    assert!(create["count"].as_u64() >= Some(50));
    assert!(create["p50_us"].as_f64() <= create["p99_us"].as_f64());
    assert!(page["gauges"]["cores"].as_u64() >= Some(1));
    // Failures by errno; a name that is not there is no failure.
    let row = |name: &str| {
        let rows = page["operations"].as_array().unwrap();
        rows.iter().find(|row| row["name"] == name).expect("it was asked for").clone()
    };
    let (mkdir, rmdir) = (row("mkdir"), row("rmdir"));
    assert_eq!(mkdir["errors"], serde_json::json!({"EEXIST": 3}));
    assert_eq!((&mkdir["failed"], &mkdir["not_found"]), (&3.into(), &0.into()));
    assert_eq!(rmdir["errors"], serde_json::json!({}));
    assert_eq!((&rmdir["failed"], &rmdir["not_found"]), (&0.into(), &2.into()));
    assert!(page.get("busy_directories").is_none());
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn top_and_profile_tell_what_was_asked_and_what_was_slow() {
    let data = Data::formatted();
    let server = data.serve(&[]);
    let token = data.admin_token();
    let ask = |command: &str, more: &[&str]| {
        let all = [command, server.address(), "--token", text(&token)];
        succeed(&[&all[..], more].concat())
    };
    let shown = ask("profile", &["--threshold", "1us"]);
    assert!(
        shown.contains("from now on operations that take 1.0 us or longer are slow"),
        "{shown}"
    );
    work(&data, &server);
    // Directories of the fill stay, so they have paths.
    let fill = ["bench", "fill", server.address(), "--files", "3000", "--token", text(&token)];
    succeed(&fill);
    let top: Value =
        serde_json::from_str(&ask("top", &["--once", "--json", "--interval", "100ms"])).unwrap();
    assert!(top["seconds"].as_f64() > Some(0.09));
    assert!(top["operations"].as_array().unwrap().iter().any(|row| row["name"] == "load"));
    let paths = top["directories"].as_array().unwrap();
    assert!(paths.iter().any(|row| row["name"].as_str().is_some_and(|name| name.starts_with('/'))));
    let shown = ask("top", &["--once", "--interval", "100ms"]);
    for part in ["operations/s", "OPERATION", "CLIENT", "DIRECTORY"] {
        assert!(shown.contains(part), "{shown}");
    }
    assert!(!shown.contains('\u{1b}'), "it is no terminal: {shown:?}");

    let profile: Value = serde_json::from_str(&ask("profile", &["--json"])).unwrap();
    assert_eq!(profile["threshold_us"], 1);
    let slow = profile["slow"].as_array().unwrap();
    assert!(slow.len() > 10 && slow.len() <= 512, "{}", slow.len());
    for row in slow {
        let stages = row["stages_us"].as_object().unwrap();
        let sum: u64 = stages.values().map(|stage| stage.as_u64().unwrap()).sum();
        let total = row["total_us"].as_f64().unwrap();
        // Each stage is rounded down.
        assert!(sum as f64 <= total && total < (sum + 6) as f64, "{row}");
    }
    let named = |row: &Value| row["directory"].as_str().is_some_and(|path| path.starts_with('/'));
    assert!(slow.iter().any(named));
    let shown = ask("profile", &[]);
    assert!(shown.contains("QUEUE") && shown.contains("took 1.0 us or longer"), "{shown}");
    let shown = ask("status", &[]);
    assert!(shown.contains("OPERATION") && shown.contains("OPEN FILES"), "{shown}");

    let limited = data.token(&["--path", "/", "--ro"]);
    for command in ["top", "profile", "sessions", "opens"] {
        let said = fail(1, &[command, server.address(), "--token", text(&limited)]);
        assert!(said.contains("needs an administrator's token"), "{said}");
    }
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn sessions_and_what_they_have_open_are_listed_and_a_session_is_evicted() {
    let data = Data::formatted();
    let server = data.serve(&[]);
    let token = data.admin_token();
    let ask = |command: &str, more: &[&str]| -> Vec<Value> {
        let all = [command, server.address(), "--token", text(&token), "--json"];
        serde_json::from_str(&succeed(&[&all[..], more].concat())).unwrap()
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let secret = std::fs::read_to_string(&token).unwrap();
    let mut config = Config::new(vec![server.address().to_owned()], secret.trim().to_owned());
    config.client_name = "the test".to_owned();
    let (client, file) = runtime.block_on(async {
        let client = Client::connect(config).await.unwrap();
        let options = OpenOptions::both().create(0o644);
        let file = client.open_with("/open", options).await.unwrap();
        (client, file)
    });
    let sessions = ask("sessions", &[]);
    let ours = sessions.iter().find(|row| row["client"] == "the test").expect("it is listed");
    assert_eq!((&ours["open_files"], &ours["read_only"]), (&1.into(), &false.into()));
    let id = ours["session"].as_str().unwrap();
    let open = ask("opens", &[]);
    assert_eq!(open.len(), 1);
    assert_eq!((&open[0]["session"], &open[0]["client"]), (&id.into(), &"the test".into()));
    assert_eq!(ask("opens", &["--session", id]), open);
    let unknown = ["opens", server.address(), "--token", text(&token), "--session", "999"];
    assert!(fail(1, &unknown).contains("there is no session 999"));

    let evict = ["sessions", server.address(), "--token", text(&token), "--evict", id];
    assert_eq!(succeed(&evict), "");
    assert!(ask("sessions", &[]).iter().all(|row| row["session"] != id));
    assert!(ask("opens", &[]).iter().all(|row| row["session"] != id));
    assert!(fail(1, &evict).contains("there is no session"));
    runtime.block_on(async {
        // The client is back with another session.
        client.write("/after", b"1").await.unwrap();
        drop(file);
        drop(client);
    });
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn top_ends_at_q_and_leaves_the_terminal_as_it_was() {
    let data = Data::formatted();
    let server = data.serve(&[]);
    let token = data.admin_token();
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("there are terminals");
    grantpt(&ours).unwrap();
    unlockpt(&ours).unwrap();
    let name = ptsname(&ours, Vec::new()).unwrap();
    let theirs = || {
        let path = Path::new(name.to_str().unwrap());
        std::fs::File::options().read(true).write(true).open(path).unwrap()
    };
    let terminal = theirs();
    let before = tcgetattr(&terminal).unwrap();
    let mut top = pando(&["top", server.address(), "--token", text(&token), "--interval", "50ms"]);
    let mut top = top.stdin(theirs()).stdout(theirs()).spawn().unwrap();
    let mut keys = std::fs::File::from(ours);
    let mut shown = String::new();
    while !shown.contains("OPERATION") {
        let mut bytes = [0; 4096];
        let count = keys.read(&mut bytes).unwrap();
        shown += &String::from_utf8_lossy(&bytes[..count]);
    }
    assert!(shown.starts_with("\u{1b}[?1049h"), "{shown:?}");
    assert!(!tcgetattr(&terminal).unwrap().local_modes.contains(LocalModes::ECHO));
    keys.write_all(b"q").unwrap();
    while !shown.contains("\u{1b}[?1049l") {
        let mut bytes = [0; 4096];
        let count = keys.read(&mut bytes).unwrap();
        shown += &String::from_utf8_lossy(&bytes[..count]);
    }
    assert_eq!(top.wait().unwrap().code(), Some(0));
    assert_eq!(tcgetattr(&terminal).unwrap().local_modes, before.local_modes);
    assert_eq!(server.stop(), Some(0));
}

fn trace(file: &Path) -> Vec<Value> {
    serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap()
}

/// The tracks of a trace: of each its events in order.
fn tracks<'a>(events: &'a [Value], process: u64) -> Vec<Vec<&'a Value>> {
    let mut tracks: std::collections::BTreeMap<&str, Vec<&'a Value>> = Default::default();
    for event in events.iter().filter(|event| event["pid"] == process) {
        if let Some(id) = event["id"].as_str() {
            tracks.entry(id).or_default().push(event);
        }
    }
    tracks.into_values().collect()
}

#[test]
fn a_trace_has_nested_spans_of_a_create() {
    let data = Data::formatted();
    let file = data.folder.path().join("trace.json");
    let server = data.serve(&["--trace", text(&file), "--durability", "strict", "--cores", "1"]);
    work(&data, &server);
    assert_eq!(server.stop(), Some(0));
    let events = trace(&file);
    let tracks = tracks(&events, 1);
    let is_create = |track: &&Vec<&Value>| {
        track[0]["name"] == "create" && track[0]["args"]["outcome"] == "done"
    };
    let creates: Vec<_> = tracks.iter().filter(is_create).collect();
    assert!(creates.len() >= 50, "{}", creates.len());
    for track in creates {
        let (first, last) = (track[0], track[track.len() - 1]);
        assert_eq!(
            (&first["ph"], &last["ph"], &last["name"]),
            (&"b".into(), &"e".into(), &"create".into())
        );
        let field = |name: &str| first["args"][name].clone();
        assert!(field("session").is_string() && field("request").as_u64() > Some(0));
        assert_eq!((field("core"), field("op")), (0.into(), "create".into()));
        let at = |event: &Value| event["ts"].as_f64().unwrap();
        let inner = &track[1..track.len() - 1];
        for part in ["execute", "write", "sync"] {
            assert!(inner.iter().any(|event| event["name"] == part), "{part}: {track:#?}");
        }
        // The parts fill the request, one after the other.
        let mut now = at(first);
        for part in inner.chunks(2) {
            let (begins, ends) = (at(part[0]), at(part[1]));
            assert_eq!((&part[0]["ph"], &part[1]["ph"]), (&"b".into(), &"e".into()));
            assert!((begins - now).abs() < 0.01 && begins <= ends, "{track:#?}");
            now = ends;
        }
        assert!((at(last) - now).abs() < 0.01, "{track:#?}");
    }
    let groups: Vec<_> = events.iter().filter(|event| event["name"] == "group").collect();
    assert!(!groups.is_empty() && groups.iter().all(|group| group["ph"] == "X"));
}

#[test]
fn a_trace_of_a_mount_has_the_calls_and_their_requests() {
    let folder = folder();
    let (data, mount, file) =
        (folder.path().join("data"), folder.path().join("mnt"), folder.path().join("trace.json"));
    let args = ["up", "--data", text(&data), "--mount", text(&mount), "--trace", text(&file)];
    let ports = ["--listen", "127.0.0.1:0", "--http", "off"];
    let running = Running::start(pando(&[&args[..], &ports].concat()), "mounted at ");
    for number in 0..20 {
        std::fs::write(mount.join(format!("file{number}")), "contents").unwrap();
    }
    assert_eq!(running.stop(), Some(0));
    let events = trace(&file);
    let tracks = tracks(&events, 2);
    let nested = tracks.iter().filter(|track| {
        let at = |name: &str, phase: &str| {
            let found = track.iter().find(|event| event["name"] == name && event["ph"] == phase);
            found.and_then(|event| event["ts"].as_f64())
        };
        let [call, request] = ["call CREATE", "request Create"]
            .map(|name| Some((at(name, "b")?, at(name, "e")?)));
        matches!((call, request), (Some(call), Some(request)) if call.0 <= request.0 && request.1 <= call.1)
    });
    assert!(nested.count() > 0, "{tracks:#?}");
    assert!(events.iter().any(|event| event["pid"] == 1 && event["name"] == "create"));
}

#[test]
fn the_log_can_be_json() {
    let data = Data::formatted();
    let token = data.admin_token();
    let command = [
        "status",
        "127.0.0.1:9",
        "--token",
        text(&token),
        "--log-format",
        "json",
        "--log-level",
        "debug",
    ];
    let mut process = pando(&command);
    let mut process = process.stderr(Stdio::piped()).spawn().unwrap();
    let mut said = std::io::BufReader::new(process.stderr.take().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut said, &mut line).unwrap();
    process.kill().unwrap();
    process.wait().unwrap();
    let line: Value = serde_json::from_str(&line).expect("a line is a JSON object");
    assert!(line["timestamp"].is_string() && line["level"].is_string(), "{line}");
}
