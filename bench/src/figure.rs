//! A figure: what an experiment measured, as data for programs and as a drawing.
//!
//! `bench figures` makes them. Nothing is measured here.

mod svg;

use serde::Serialize;

/// Results of an experiment.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Figure {
    /// Short name of the figure, such as `fig9`.
    pub name: String,
    /// Subject of the figure.
    pub title: String,
    /// Way of the measurement, with all differences from the paper.
    pub how: String,
    /// With which sizes: names and values.
    pub parameters: Vec<(String, String)>,
    /// The drawings of it.
    pub charts: Vec<Chart>,
}

/// Some series over the same points.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Chart {
    /// Quantity that the chart shows, with its unit.
    pub title: String,
    /// Meaning of the points.
    pub x: String,
    /// Kind of drawing.
    pub marks: Marks,
    /// The points, in order.
    pub points: Vec<String>,
    /// Values measured at the points.
    pub series: Vec<Series>,
}

/// How a chart is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Marks {
    /// A line for each series.
    Lines,
    /// A bar for each series at each point.
    Bars,
}

/// Measured values of one thing.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Series {
    /// The thing.
    pub name: String,
    /// A value for each point; `None` where it was not measured.
    pub values: Vec<Option<f64>>,
}

impl Chart {
    /// A chart of what is measured later, with [`Chart::add`].
    #[must_use]
    pub fn new(title: &str, x: &str, marks: Marks) -> Chart {
        let (title, x) = (title.to_owned(), x.to_owned());
        Chart { title, x, marks, points: Vec::new(), series: Vec::new() }
    }

    /// Takes in a value of `series` at `point`; points and series are in the order in which they
    /// first came.
    pub fn add(&mut self, point: &str, series: &str, value: f64) {
        let at = position(&mut self.points, |known| known == point, || point.to_owned());
        let new = || Series { name: series.to_owned(), values: Vec::new() };
        let of = position(&mut self.series, |known| known.name == series, new);
        for known in &mut self.series {
            known.values.resize(self.points.len(), None);
        }
        self.series[of].values[at] = Some(value);
    }

    /// The value of `series` at `point`.
    #[must_use]
    pub fn value(&self, point: &str, series: &str) -> Option<f64> {
        let at = self.points.iter().position(|known| known == point)?;
        let of = self.series.iter().find(|known| known.name == series)?;
        *of.values.get(at)?
    }

    /// The table of it, for a page.
    #[must_use]
    pub fn table(&self) -> String {
        let names = self.series.iter().map(|series| series.name.as_str());
        let mut text = format!("| {} | {} |\n", self.x, names.collect::<Vec<_>>().join(" | "));
        text += &format!("|{}\n", "---|".repeat(self.series.len() + 1));
        for (at, point) in self.points.iter().enumerate() {
            let values = self.series.iter().map(|series| match series.values.get(at) {
                Some(Some(value)) => crate::report::figure(*value),
                Some(None) | None => "–".to_owned(),
            });
            text += &format!("| {point} | {} |\n", values.collect::<Vec<_>>().join(" | "));
        }
        text
    }
}

/// Where what `is` it stands, or now stands at the end.
fn position<T>(all: &mut Vec<T>, is: impl Fn(&T) -> bool, new: impl FnOnce() -> T) -> usize {
    all.iter().position(is).unwrap_or_else(|| {
        all.push(new());
        all.len() - 1
    })
}

impl Figure {
    /// The drawing.
    #[must_use]
    pub fn svg(&self) -> String {
        svg::draw(self)
    }

    /// Returns the charts as tables, for people.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = format!("{}: {}\n", self.name, self.title);
        for chart in &self.charts {
            text += &format!("\n{}\n\n{}", chart.title, chart.table());
        }
        text
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "these are tests")]

    use super::*;

    fn chart() -> Chart {
        let mut chart = Chart::new("CPU <µs>", "servers", Marks::Lines);
        chart.add("1", "create", 5.0);
        chart.add("2", "create", 6.0);
        chart.add("2", "stat", 1.25);
        chart
    }

    #[test]
    fn what_was_not_measured_is_not_made_up() {
        let chart = chart();
        assert_eq!(chart.value("2", "stat"), Some(1.25));
        assert_eq!((chart.value("1", "stat"), chart.value("3", "stat")), (None, None));
        let table =
            "| servers | create | stat |\n|---|---|---|\n| 1 | 5.00 | – |\n| 2 | 6.00 | 1.25 |\n";
        assert_eq!(chart.table(), table);
    }

    #[test]
    fn a_drawing_has_every_series_and_escapes_what_it_is_given() {
        let bars = Chart { marks: Marks::Bars, ..chart() };
        let figure = Figure {
            name: "fig0".to_owned(),
            title: "a & b".to_owned(),
            how: "by hand".to_owned(),
            parameters: Vec::new(),
            charts: vec![chart(), bars, Chart::new("nothing", "x", Marks::Lines)],
        };
        let svg = figure.svg();
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
        for part in ["a &amp; b", "CPU &lt;µs&gt;", "<polyline", "<rect", "create", "stat"] {
            assert!(svg.contains(part), "{part}");
        }
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
        let data = serde_json::to_value(&figure).unwrap();
        assert_eq!(data["charts"][1]["marks"], "bars");
        assert!(data["charts"][0]["series"][1]["values"][0].is_null());
    }
}
