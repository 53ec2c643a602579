//! The drawing: a bar for each rate on a logarithmic scale, its spread, and a mark where its floor
//! is.

use super::{Line, Rate, figure, rates};

const LEFT: f64 = 300.0;
const WIDTH: f64 = 620.0;
const RIGHT: f64 = 130.0;
const ROW: f64 = 22.0;
const TOP: f64 = 70.0;
/// Beginning of the scale, and the powers of ten that it has at least.
const LEAST: f64 = 100.0;
const DECADES_MIN: f64 = 4.0;

/// Draws all rates of `lines`.
#[must_use]
pub fn svg(lines: &[Line]) -> String {
    let rates = rates(lines);
    let most = rates.iter().flat_map(|rate| [rate.per_second.2, rate.floor.unwrap_or(0.0)]);
    let decades = (most.fold(LEAST, f64::max) / LEAST).log10().ceil().max(DECADES_MIN);
    let x = |value: f64| LEFT + WIDTH * (value.max(LEAST) / LEAST).log10() / decades;
    let height = rows(rates.len()) * ROW + TOP + 30.0;
    let width = LEFT + WIDTH + RIGHT;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
         <text x=\"10\" y=\"24\" font-size=\"16\">Operations per second</text>\n\
         <text x=\"10\" y=\"44\" fill=\"#555\">bar: median; line: least to most; mark: the floor of the \
         same run; logarithmic scale</text>\n"
    );
    let mut decade = 0.0;
    while decade <= decades {
        let at = x(LEAST * 10_f64.powf(decade));
        text += &format!(
            "<line x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{:.1}\" stroke=\"#ddd\"/>\n\
             <text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#555\">{}</text>\n",
            height - 24.0,
            height - 8.0,
            figure(LEAST * 10_f64.powf(decade))
        );
        decade += 1.0;
    }
    for (at, rate) in rates.iter().enumerate() {
        text += &bar(rate, TOP + rows(at) * ROW, &x);
    }
    text + "</svg>\n"
}

#[expect(clippy::cast_precision_loss, reason = "nobody draws so many rows")]
fn rows(count: usize) -> f64 {
    count as f64
}

fn bar(rate: &Rate, top: f64, x: &impl Fn(f64) -> f64) -> String {
    let (median, least, most) = rate.per_second;
    let label = if rate.run.is_empty() {
        rate.phase.clone()
    } else {
        format!("{}: {}", rate.run, rate.phase)
    };
    let middle = top + ROW / 2.0;
    let mut text = format!(
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\n\
         <rect x=\"{LEFT}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"#4c78a8\"/>\n\
         <line x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{middle:.1}\" y2=\"{middle:.1}\" stroke=\"#1b2f45\" \
         stroke-width=\"2\"/>\n",
        LEFT - 8.0,
        middle + 4.0,
        escape(&label),
        top + 4.0,
        x(median) - LEFT,
        ROW - 8.0,
        x(least),
        x(most),
    );
    let mut end = x(most);
    if let Some(floor) = rate.floor {
        let at = x(floor);
        end = end.max(at);
        text += &format!(
            "<line x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{:.1}\" y2=\"{:.1}\" stroke=\"#e45756\" \
             stroke-width=\"3\"><title>floor {}</title></line>\n",
            top + 1.0,
            top + ROW - 1.0,
            figure(floor)
        );
    }
    text + &format!(
        "<text x=\"{:.1}\" y=\"{:.1}\" fill=\"#333\">{}</text>\n",
        end + 6.0,
        middle + 4.0,
        figure(median)
    )
}

pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
