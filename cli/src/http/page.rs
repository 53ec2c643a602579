//! `/`: one plain page that reloads itself.

use std::{fmt::Write as _, time::Duration};

use wire::Status;

use crate::output;

const HEAD: &str = "<!doctype html><html lang=en><meta charset=utf-8>\
<meta name=viewport content=\"width=device-width\"><meta http-equiv=refresh content=5>\
<style>body{font:15px/1.5 system-ui,sans-serif;margin:2em auto;max-width:52em;padding:0 1em}\
table{border-collapse:collapse;margin:0 0 1.5em}td,th{text-align:left;padding:.1em 1.5em .1em 0}\
td.n{text-align:right;font-variant-numeric:tabular-nums}.bad{color:#b00020}</style>";

/// The page; `problem` is why the server has stopped serving, if it has.
pub(super) fn render(status: &Status, problem: Option<&str>) -> String {
    let name = escape(&status.name);
    let mut page = format!("{HEAD}<title>{name} - pando</title><h1>{name}</h1>");
    if let Some(problem) = problem {
        put(&mut page, format_args!("<p class=bad>{}</p>", escape(problem)));
    }
    let uptime = humantime::format_duration(Duration::from_secs(status.uptime_seconds)).to_string();
    let facts = [
        ("unique id", format!("{:032x}", status.uuid)),
        ("version", status.version.clone()),
        ("up for", uptime),
        ("shards", status.shards.to_string()),
        (
            "durability",
            format!("{}, commit interval {} ms", status.durability, status.commit_interval_ms),
        ),
        ("blocks", status.blocks.clone()),
        ("files, about", status.files.to_string()),
        ("metadata on disk", output::bytes(status.store_bytes)),
        ("records, about", status.store_records.to_string()),
    ];
    page.push_str("<table>");
    for (name, value) in &facts {
        put(&mut page, format_args!("<tr><th>{name}<td>{}", escape(value)));
    }
    page.push_str("</table><h2>Sessions</h2><table><tr><th>client<th>open files<th>silent for");
    for session in &status.sessions {
        put(
            &mut page,
            format_args!(
                "<tr><td>{}<td class=n>{}<td class=n>{} s",
                escape(&session.client),
                session.open_files,
                session.idle_seconds
            ),
        );
    }
    page.push_str("</table><h2>Since the start</h2><table>");
    for (name, value) in status.counters.iter().filter(|(_, value)| *value > 0) {
        let name = escape(&name.replace('_', " "));
        put(&mut page, format_args!("<tr><td>{name}<td class=n>{value}"));
    }
    page.push_str("</table><p>For programs: <a href=/metrics>/metrics</a>, <a href=/healthz>/healthz</a></p></html>\n");
    page
}

fn put(page: &mut String, text: std::fmt::Arguments<'_>) {
    page.write_fmt(text).expect("writing to a string cannot fail");
}

/// Text as HTML: names and clients are what others chose.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in super::super) fn status() -> Status {
        Status {
            name: "a \"b\" <c>".to_owned(),
            uuid: 1,
            version: "0".to_owned(),
            uptime_seconds: 61,
            shards: 64,
            durability: "relaxed".to_owned(),
            commit_interval_ms: 20,
            blocks: "blocks".to_owned(),
            sessions: vec![wire::SessionStatus {
                session: base::SessionId(1),
                client: "<script>".to_owned(),
                idle_seconds: 0,
                open_files: 2,
            }],
            files: 3,
            counters: vec![("create".to_owned(), 7), ("mkdir".to_owned(), 0)],
            store_bytes: 1 << 20,
            store_records: 5,
            process: wire::ProcessStatus::default(),
        }
    }

    #[test]
    fn what_others_chose_is_no_markup() {
        let page = render(&status(), Some("<halt>"));
        assert!(page.contains("&lt;script&gt;") && !page.contains("<script>"));
        assert!(page.contains("&lt;halt&gt;") && !page.contains("<halt>"));
        assert!(page.contains("<tr><td>create<td class=n>7"));
    }
}
