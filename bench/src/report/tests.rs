//! Tables and drawing of fixed results.

use super::*;

const RESULTS: &str = r#"
{"floor":"echo_128","ops":10,"ops_per_s":900000.0,"p50_us":null,"client_cpu_us_per_op":0.5,"server_cpu_us_per_op":0.4}
{"floor":"engine_create","ops":10,"ops_per_s":350000.0,"p50_us":null,"client_cpu_us_per_op":null,"server_cpu_us_per_op":2.9}
{"floor":"engine_create","ops":10,"ops_per_s":330000.0,"p50_us":null,"client_cpu_us_per_op":null,"server_cpu_us_per_op":3.1}
{"floor":"engine_create","ops":10,"ops_per_s":340000.0,"p50_us":null,"client_cpu_us_per_op":null,"server_cpu_us_per_op":3.0}
{"floor":"null_file_create","ops":10,"ops_per_s":45000.0,"p50_us":80.0,"client_cpu_us_per_op":9.0,"server_cpu_us_per_op":null}
{"run":"native, 128 in flight","phase":"file_create","ops":10,"seconds":0.1,"ops_per_s":120000.0,"p50_us":900.0,"p99_us":2000.0,"client_cpu_us_per_op":5.0,"server_cpu_us_per_op":6.0,"requests_per_op":1.0}
{"run":"native, 128 in flight","phase":"file_create","ops":10,"seconds":0.1,"ops_per_s":100000.0,"p50_us":900.0,"p99_us":2000.0,"client_cpu_us_per_op":5.0,"server_cpu_us_per_op":6.0,"requests_per_op":1.0}
{"run":"mount <caches off>","phase":"file_create","ops":10,"seconds":0.1,"ops_per_s":20000.0,"p50_us":90.0,"p99_us":200.0,"client_cpu_us_per_op":5.0,"server_cpu_us_per_op":null,"requests_per_op":null}
{"target":"creates","goal":"over 120,000","met":false,"unit":"/s","reached":110000.0,"spread":[100000.0,120000.0],"floor":null,"ratio":null,"command":"pando bench md"}
"#;

#[test]
fn rates_stand_beside_their_floors() {
    let rates = rates(&parse(RESULTS).unwrap());
    assert_eq!(rates.len(), 2);
    assert_eq!(rates[0].per_second, (120_000.0, 100_000.0, 120_000.0));
    assert!((rates[0].floor.unwrap() - 1e6 / 3.4).abs() < 1.0, "{rates:?}");
    assert_eq!(rates[1].floor, Some(45_000.0));
}

#[test]
fn the_floor_of_a_stat_is_that_of_its_frames_alone() {
    let floors = Floors::of(&parse(RESULTS).unwrap());
    assert_eq!(floors.server_cpu_us("echo_128", "file_stat"), Some(0.4));
    assert_eq!(floors.server_cpu_us("echo_128", "file_create"), Some(3.4));
    assert_eq!(floors.server_cpu_us("echo_128", "readdir"), None);
    assert_eq!(floors.server_cpu_us("echo_1", "file_stat"), None);
}

#[test]
fn one_run_has_no_spread_and_what_is_only_shown_is_not_judged() {
    let of = |values, goal| TargetRow::of("a", ("ms", goal), values, None, "c").map(Line::Target);
    let lines: Vec<_> = [of(vec![3.0], Goal::Below(5.0)), of(vec![3.0, 3.5, 4.0], Goal::Shown)]
        .into_iter()
        .flatten()
        .collect();
    let table = targets(&lines);
    assert!(
        table.contains("| a | under 5 ms | 3.00 ms | one run | – | – | yes | `c` |"),
        "{table}"
    );
    assert!(table.contains("| a | – | 3.50 ms | 3.00 to 4.00 | – | – | – | `c` |"), "{table}");
    let line = serde_json::to_string(&lines[1]).unwrap();
    assert_eq!(parse(&line).unwrap(), lines[1..]);
}

#[test]
fn the_drawing_has_a_bar_and_a_floor_for_each_rate() {
    let drawn = svg(&parse(RESULTS).unwrap());
    assert_eq!(drawn.matches("fill=\"#4c78a8\"").count(), 2);
    assert_eq!(drawn.matches("<title>floor ").count(), 2);
    assert!(drawn.contains("mount &lt;caches off&gt;: file_create"));
    assert!(drawn.starts_with("<svg ") && drawn.ends_with("</svg>\n"));
    assert!(!drawn.contains("NaN") && !drawn.contains("inf"));
}

#[test]
fn a_target_that_was_missed_is_said_to_be() {
    let table = targets(&parse(RESULTS).unwrap());
    let row = "| creates | over 120,000 | 110,000 /s | 100,000 to 120,000 | – | – | **no** | \
               `pando bench md` |";
    assert!(table.contains(row), "{table}");
    let floors = floors(&parse(RESULTS).unwrap());
    assert!(floors.contains("| engine_create | 340,000 | – | – | 3.00 |"), "{floors}");
}

#[test]
fn what_is_no_result_is_refused_with_its_line() {
    let error = parse("\n{\"phase\":1}\n").unwrap_err();
    assert_eq!(error.line, 2);
    assert!(parse("").unwrap().is_empty());
    let drawn = svg(&[]);
    assert!(!drawn.contains("NaN") && !drawn.contains("inf"));
}
