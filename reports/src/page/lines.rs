//! Interactive chart of lines and points over two axes. Each point has a tooltip.

use super::LinesWithTooltips;
use super::frame::{FigureText, LegendEntry, PlotLabel, PlotSize, figure, legend, plot, series_class};
use crate::chart::axis::AxisRange;
use crate::chart::palette::{self, Marker};
use crate::chart::{Band, BandColour, Line, LineChart, Role};
use crate::markup::{Markup, number, shortened};

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 380.0;
const LEFT: f64 = 72.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 48.0;
/// Upper bound on the average width of a label's character, in pixels.
const LETTER: f64 = 8.0;
/// Maximum number of points of a line that have tooltips. Longer lines are subsampled.
const MAX_POINTS: usize = 400;

/// Maximum number of points that are labelled with the names of their lines.
const MAX_LABELS: usize = 14;
/// Height of a label, and distance of a label from its point, in pixels.
const LABEL_HEIGHT: f64 = 14.0;
const LABEL_GAP: f64 = 9.0;
/// Maximum number of characters of a label.
const LABEL_LETTERS: usize = 28;

/// Entry of the legend: all lines and bands with one name, which are shown and hidden together.
struct LineEntry<'a> {
    name: &'a str,
    class: String,
    key: Key,
}

/// Shape of the sample before the name of a legend entry.
#[derive(Clone, Copy)]
enum Key {
    Line,
    Point(Marker),
    Band,
}

struct LineSheet<'a> {
    chart: &'a LineChart,
    x: AxisRange,
    y: AxisRange,
    entries: Vec<LineEntry<'a>>,
}

/// Writes a line chart, or a message if no point can be drawn.
pub(super) fn write(lines: &LinesWithTooltips, markup: &mut Markup) {
    let text = FigureText {
        class: "chart",
        title: &lines.chart.title,
        remark: &lines.remark,
        empty: "There is no point to draw.",
    };
    let sheet = LineSheet::new(&lines.chart);
    figure(text, sheet, markup, |sheet, markup| sheet.write(lines, markup));
}

/// Returns the style sheet class of a role.
fn class(role: Role) -> String {
    match role {
        Role::Series(number) | Role::Points(number) | Role::Range(number) => series_class(number),
        Role::Pick => "pick".to_owned(),
        Role::Other => "other".to_owned(),
        Role::Bound => "bound".to_owned(),
        Role::Measured => "measured".to_owned(),
    }
}

/// Returns the style sheet class of a band's shade.
fn shade_class(shade: BandColour) -> String {
    match shade {
        BandColour::Pale => "pale".to_owned(),
        BandColour::Series(number) => series_class(number),
    }
}

impl<'a> LineSheet<'a> {
    fn new(chart: &'a LineChart) -> Option<Self> {
        let visible = |&(x, y): &(f64, f64)| chart.x.shows(x) && chart.y.shows(y);
        let bands = chart.bands.iter().flat_map(|band| &band.points).flat_map(|&(x, low, high)| [(x, low), (x, high)]);
        let points = chart.lines.iter().flat_map(|line| line.points.iter().copied()).chain(bands);
        let points: Vec<(f64, f64)> = points.filter(visible).collect();
        let x = chart.x.span(points.iter().map(|point| point.0))?;
        let y = chart.y.span(points.iter().map(|point| point.1))?;
        let mut entries: Vec<LineEntry<'a>> = Vec::new();
        let mut add = |name: &'a str, class: String, key: Key| {
            if entries.iter().all(|entry| entry.name != name) {
                entries.push(LineEntry { name, class, key });
            }
        };
        for line in &chart.lines {
            match line.role {
                Role::Range(_) => {}
                Role::Points(number) => add(&line.name, class(line.role), Key::Point(palette::series(number).1)),
                Role::Measured => add(&line.name, class(line.role), Key::Point(Marker::Circle)),
                role => add(&line.name, class(role), Key::Line),
            }
        }
        for band in &chart.bands {
            add(&band.name, shade_class(band.shade), Key::Band);
        }
        Some(Self { chart, x, y, entries })
    }

    fn entry(&self, name: &str) -> String {
        self.entries.iter().position(|entry| entry.name == name).unwrap_or_default().to_string()
    }

    /// Returns the position of a point in pixels; `None` if the axes do not show it.
    fn position(&self, x: f64, y: f64) -> Option<(f64, f64)> {
        (self.chart.x.shows(x) && self.chart.y.shows(y)).then(|| self.to_pixels(self.x.position(x), self.y.position(y)))
    }

    fn to_pixels(&self, x: f64, y: f64) -> (f64, f64) {
        (LEFT + x * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - y * (HEIGHT - TOP - BOTTOM))
    }

    fn write(&self, lines: &LinesWithTooltips, markup: &mut Markup) {
        let keys = self.entries.iter().map(|entry| LegendEntry {
            name: entry.name,
            class: &entry.class,
            path: entry.key.path(),
        });
        legend(keys, markup);
        let size = PlotSize { width: WIDTH, height: HEIGHT };
        plot(size, PlotLabel { title: &self.chart.title, things: "point" }, markup, |markup| self.draw(lines, markup));
    }

    fn draw(&self, lines: &LinesWithTooltips, markup: &mut Markup) {
        for band in &self.chart.bands {
            self.band(band, markup);
        }
        self.grid(&self.chart.x_title, markup);
        let mut order: Vec<(usize, &Line)> = self.chart.lines.iter().enumerate().collect();
        // The first series is drawn on top of the others.
        order.sort_by_key(|(number, line)| match line.role {
            Role::Pick => (0, 0),
            Role::Bound => (1, 0),
            Role::Other => (2, 0),
            _ => (3, usize::MAX - number),
        });
        for (number, line) in order {
            self.line(line, lines.tooltips.get(number).map_or(&[], Vec::as_slice), markup);
        }
        self.labels(markup);
    }

    fn grid(&self, x_title: &str, markup: &mut Markup) {
        markup.open("g", &[("class", "grid"), ("aria-hidden", "true")]);
        let mut free_from = f64::NEG_INFINITY;
        for tick in self.x.ticks(9) {
            let (x, bottom) = self.to_pixels(tick.position, 0.0);
            let class = if tick.label.is_some() { "" } else { "fine" };
            let path = format!("M{} {}V{}", number(x), number(bottom), number(TOP));
            markup.empty("path", &[("class", class), ("d", &path)]);
            if let Some(label) = &tick.label {
                let half = label.chars().count() as f64 * LETTER / 2.0;
                if x - half >= free_from && x + half <= WIDTH {
                    free_from = x + half + LETTER;
                    let (x, y) = (number(x), number(bottom + 18.0));
                    markup.text("text", &[("x", &x), ("y", &y), ("text-anchor", "middle")], label);
                }
            }
        }
        for tick in self.y.vertical_ticks() {
            let (left, y) = self.to_pixels(0.0, tick.position);
            let class = if tick.label.is_some() { "" } else { "fine" };
            let path = format!("M{} {}H{}", number(left), number(y), number(WIDTH - RIGHT));
            markup.empty("path", &[("class", class), ("d", &path)]);
            if let Some(label) = &tick.label {
                let (x, y) = (number(left - 8.0), number(y + 4.0));
                markup.text("text", &[("x", &x), ("y", &y), ("text-anchor", "end")], label);
            }
        }
        let (x, y) = (number((LEFT + WIDTH - RIGHT) / 2.0), number(HEIGHT - 8.0));
        markup.text("text", &[("class", "axis"), ("x", &x), ("y", &y), ("text-anchor", "middle")], x_title);
        markup.close();
    }

    fn band(&self, band: &Band, markup: &mut Markup) {
        let edges: Vec<_> = band
            .points
            .iter()
            .filter_map(|&(x, low, high)| Some((self.position(x, low)?, self.position(x, high)?)))
            .collect();
        if edges.len() < 2 {
            return;
        }
        let lower = edges.iter().map(|edge| edge.0);
        let upper = edges.iter().rev().map(|edge| edge.1);
        let shade = shade_class(band.shade);
        let shape = format!("{}Z", path(lower.chain(upper)));
        let entry = self.entry(&band.name);
        markup.empty("path", &[("class", &format!("band {shade}")), ("data-series", &entry), ("d", &shape)]);
    }

    fn line(&self, line: &Line, tooltips: &[String], markup: &mut Markup) {
        let positions: Vec<(usize, (f64, f64))> =
            line.points.iter().enumerate().filter_map(|(k, &(x, y))| Some((k, self.position(x, y)?))).collect();
        let entry = self.entry(&line.name);
        markup.open("g", &[("class", &class(line.role)), ("data-series", &entry)]);
        let is_connected = !matches!(line.role, Role::Points(_) | Role::Measured);
        if is_connected && positions.len() > 1 {
            markup.empty("path", &[("class", "line"), ("d", &path(positions.iter().map(|position| position.1)))]);
        }
        let marker = match line.role {
            Role::Series(number) | Role::Points(number) => Some(palette::series(number).1),
            Role::Measured => Some(Marker::Circle),
            Role::Pick | Role::Other | Role::Bound | Role::Range(_) => None,
        };
        if let Some(marker) = marker {
            let size = if is_connected { 3.4 } else { 4.4 };
            let every = positions.len().div_ceil(MAX_POINTS).max(1);
            for &(k, (left, top)) in positions.iter().step_by(every) {
                let Some(&(x, y)) = line.points.get(k) else { continue };
                markup.open("path", &[("class", "point"), ("d", &shape(marker, left, top, size))]);
                markup.multiline_text("title", &self.tooltip(line, x, y, tooltips.get(k)));
                markup.close();
            }
        }
        markup.close();
    }

    /// Writes the names of scattered points next to them, at the first place where they cover neither a point nor another
    /// name. Names without such a place are left to the legend.
    fn labels(&self, markup: &mut Markup) {
        let is_point = |line: &&Line| matches!(line.role, Role::Points(_)) && line.points.len() == 1;
        let points: Vec<(&Line, (f64, f64))> = self
            .chart
            .lines
            .iter()
            .filter(is_point)
            .filter_map(|line| {
                let &(x, y) = line.points.first()?;
                Some((line, self.position(x, y)?))
            })
            .collect();
        if points.len() > MAX_LABELS {
            return;
        }
        let mut taken: Vec<Area> = points.iter().map(|&(_, point)| Area::around(point.0, point.1, 6.0)).collect();
        for (number, (line, (x, y))) in points.into_iter().enumerate() {
            let name = shortened(&line.name, LABEL_LETTERS);
            let width = name.chars().count() as f64 * LETTER;
            let places = [
                (x + LABEL_GAP, y),
                (x - LABEL_GAP - width, y),
                (x + LABEL_GAP, y - LABEL_HEIGHT),
                (x + LABEL_GAP, y + LABEL_HEIGHT),
                (x - LABEL_GAP - width, y - LABEL_HEIGHT),
                (x - LABEL_GAP - width, y + LABEL_HEIGHT),
            ];
            let area = |(left, middle): (f64, f64)| Area {
                left,
                right: left + width,
                top: middle - LABEL_HEIGHT / 2.0,
                bottom: middle + LABEL_HEIGHT / 2.0,
            };
            let is_free = |area: &Area| {
                let inside =
                    area.left >= LEFT && area.right <= WIDTH && area.top >= 0.0 && area.bottom <= HEIGHT - BOTTOM;
                inside && taken.iter().enumerate().all(|(other, one)| other == number || !one.overlaps(area))
            };
            let Some(free) = places.into_iter().map(area).find(is_free) else { continue };
            let entry = self.entry(&line.name);
            let (x, y) = (crate::markup::number(free.left), crate::markup::number(free.bottom - 3.0));
            markup.text("text", &[("class", "label"), ("data-series", &entry), ("x", &x), ("y", &y)], &name);
            taken.push(free);
        }
    }

    fn tooltip(&self, line: &Line, x: f64, y: f64, details: Option<&String>) -> String {
        let position = format!("{}: {}, {}", line.name, self.chart.x.tooltip_value(x), self.chart.y.tooltip_value(y));
        details
            .filter(|details| !details.is_empty())
            .map_or(position.clone(), |details| format!("{position}\n{details}"))
    }
}

/// Rectangle of a drawing, in pixels.
struct Area {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
}

impl Area {
    fn around(x: f64, y: f64, radius: f64) -> Self {
        Self { left: x - radius, right: x + radius, top: y - radius, bottom: y + radius }
    }

    fn overlaps(&self, other: &Self) -> bool {
        self.left < other.right && other.left < self.right && self.top < other.bottom && other.top < self.bottom
    }
}

impl Key {
    fn path(self) -> String {
        match self {
            Self::Line => "M1 7H19".to_owned(),
            Self::Band => "M1 2H19V12H1Z".to_owned(),
            Self::Point(marker) => shape(marker, 10.0, 7.0, 4.4),
        }
    }
}

fn path(points: impl Iterator<Item = (f64, f64)>) -> String {
    let mut text = String::new();
    for (k, (x, y)) in points.enumerate() {
        text.push(if k == 0 { 'M' } else { 'L' });
        text.push_str(&number(x));
        text.push(' ');
        text.push_str(&number(y));
    }
    text
}

/// Returns a marker as an SVG path.
fn shape(marker: Marker, x: f64, y: f64, radius: f64) -> String {
    let corners = marker.corners();
    if corners.is_empty() {
        let (r, d) = (number(radius), number(2.0 * radius));
        return format!("M{} {}a{r} {r} 0 1 0 {d} 0a{r} {r} 0 1 0 -{d} 0Z", number(x - radius), number(y));
    }
    format!("{}Z", path(corners.iter().map(|(dx, dy)| (x + dx * radius, y + dy * radius))))
}
