//! The drawing of a figure: its charts in two columns, each from zero to its largest value.

use super::{Chart, Figure, Marks};
use crate::report::{escape, figure};

const COLORS: [&str; 8] =
    ["#4c78a8", "#f58518", "#54a24b", "#e45756", "#72b7b2", "#b279a2", "#9d755d", "#79706e"];
const COLUMNS: usize = 2;
const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 340.0;
const TOP: f64 = 60.0;
/// Around the area of a chart.
const LEFT: f64 = 70.0;
const ABOVE: f64 = 46.0;
const BELOW: f64 = 44.0;
const RIGHT: f64 = 20.0;
/// Lines across a chart.
const TICKS: u32 = 4;

pub(super) fn draw(drawn: &Figure) -> String {
    let rows = drawn.charts.len().div_ceil(COLUMNS);
    let columns = drawn.charts.len().clamp(1, COLUMNS);
    let (width, height) = (WIDTH * float(columns), TOP + HEIGHT * float(rows));
    let parameters: Vec<_> =
        drawn.parameters.iter().map(|(name, value)| format!("{name} {value}")).collect();
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <title>{}</title>\n<desc>{}</desc>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
         <text x=\"10\" y=\"24\" font-size=\"16\">{}</text>\n\
         <text x=\"10\" y=\"44\" fill=\"#555\">{}</text>\n",
        escape(&drawn.name),
        escape(&drawn.how),
        escape(&drawn.title),
        escape(&parameters.join(", ")),
    );
    for (at, chart) in drawn.charts.iter().enumerate() {
        let (x, y) = (WIDTH * float(at % COLUMNS), TOP + HEIGHT * float(at / COLUMNS));
        text += &format!("<g transform=\"translate({x} {y})\">\n{}</g>\n", of_chart(chart));
    }
    text + "</svg>\n"
}

/// Where values and points are in a chart.
struct Scale {
    most: f64,
    points: usize,
}

impl Scale {
    fn of(chart: &Chart) -> Scale {
        let values = chart.series.iter().flat_map(|series| &series.values).flatten();
        let most = values.copied().filter(|value| value.is_finite()).fold(0.0, f64::max);
        Scale { most: if most > 0.0 { round_up(most) } else { 1.0 }, points: chart.points.len() }
    }

    fn slot(&self) -> f64 {
        (WIDTH - LEFT - RIGHT) / float(self.points.max(1))
    }

    /// The middle of a point.
    fn x(&self, point: usize) -> f64 {
        LEFT + self.slot() * (float(point) + 0.5)
    }

    fn y(&self, value: f64) -> f64 {
        let bottom = HEIGHT - BELOW;
        bottom - (bottom - ABOVE) * value.max(0.0) / self.most
    }
}

/// To a figure that is easily divided.
fn round_up(value: f64) -> f64 {
    let power = 10_f64.powf(value.log10().floor());
    let steps = [1.0, 1.2, 1.6, 2.0, 2.4, 3.2, 4.0, 5.0, 6.0, 8.0, 10.0];
    steps.into_iter().map(|step| step * power).find(|most| *most >= value).unwrap_or(value)
}

fn of_chart(chart: &Chart) -> String {
    let scale = Scale::of(chart);
    let mut text = format!(
        "<text x=\"{LEFT}\" y=\"18\" font-weight=\"bold\">{}</text>\n\
         <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#555\">{}</text>\n",
        escape(&chart.title),
        (LEFT + WIDTH - RIGHT) / 2.0,
        HEIGHT - 8.0,
        escape(&chart.x),
    );
    for tick in 0..=TICKS {
        let value = scale.most * f64::from(tick) / f64::from(TICKS);
        let y = scale.y(value);
        text += &format!(
            "<line x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#ddd\"/>\n\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\" fill=\"#555\">{}</text>\n",
            WIDTH - RIGHT,
            LEFT - 6.0,
            y + 4.0,
            figure(value),
        );
    }
    for (at, point) in chart.points.iter().enumerate() {
        text += &format!(
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#333\">{}</text>\n",
            scale.x(at),
            HEIGHT - BELOW + 16.0,
            escape(point),
        );
    }
    let mut key = LEFT;
    for (at, series) in chart.series.iter().enumerate() {
        let color = COLORS[at % COLORS.len()];
        text += &format!(
            "<rect x=\"{key:.1}\" y=\"26\" width=\"10\" height=\"10\" fill=\"{color}\"/>\n\
             <text x=\"{:.1}\" y=\"35\">{}</text>\n",
            key + 14.0,
            escape(&series.name),
        );
        key += 30.0 + 7.0 * float(series.name.chars().count());
        text += &match chart.marks {
            Marks::Lines => line(&series.values, &scale, color),
            Marks::Bars => bars(&series.values, &scale, color, at, chart.series.len()),
        };
    }
    text
}

fn line(values: &[Option<f64>], scale: &Scale, color: &str) -> String {
    let known = values.iter().enumerate().filter_map(|(at, value)| Some((at, (*value)?)));
    let (mut points, mut text) = (String::new(), String::new());
    for (at, value) in known.filter(|(_, value)| value.is_finite()) {
        let (x, y) = (scale.x(at), scale.y(value));
        points += &format!("{x:.1},{y:.1} ");
        text += &format!(
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{color}\"><title>{}</title></circle>\n",
            figure(value),
        );
    }
    format!(
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"2\"/>\n{text}",
        points.trim_end()
    )
}

fn bars(values: &[Option<f64>], scale: &Scale, color: &str, series: usize, all: usize) -> String {
    let width = scale.slot() * 0.8 / float(all);
    let known = values.iter().enumerate().filter_map(|(at, value)| Some((at, (*value)?)));
    let mut text = String::new();
    for (at, value) in known.filter(|(_, value)| value.is_finite()) {
        let x = scale.x(at) + width * (float(series) - float(all) / 2.0);
        let y = scale.y(value);
        text += &format!(
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{:.1}\" fill=\"{color}\"/>\n\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" font-size=\"9\">{}</text>\n",
            scale.y(0.0) - y,
            x + width / 2.0,
            y - 3.0,
            figure(value),
        );
    }
    text
}

#[expect(clippy::cast_precision_loss, reason = "nobody draws so many things")]
fn float(count: usize) -> f64 {
    count as f64
}
