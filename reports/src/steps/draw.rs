//! Layout and drawing of the picture of a schedule.

use plotters::prelude::{DrawingBackend, IntoDrawingArea};
use plotters::style::RGBColor;
use plotters::style::text_anchor::HPos;

use super::{DataMovement, MergedMark, SchedulePicture};
use crate::chart::ChartError;
use crate::chart::canvas::{Canvas, Position, Stroke, TextStyle};
use crate::chart::output::Drawing;
use crate::chart::palette::{self, Marker};

/// Margin at the left and right, in logical pixels.
const MARGIN: f64 = 28.0;
/// Width of the column with the names of ranks, in logical pixels.
const NAMES: f64 = 58.0;
/// Vertical position of the step numbers, in logical pixels.
const HEAD: f64 = 96.0;
/// Height of the legend at the bottom, in logical pixels.
const FOOT: f64 = 66.0;
/// Minimum width of the picture in logical pixels, which its title and legend need.
const MIN_WIDTH: f64 = 640.0;
/// Width of the column of a step in logical pixels: without transfers, with few transfers, and with many transfers,
/// whose arrows need space.
const COLUMNS: [f64; 3] = [44.0, 66.0, 150.0];
/// Maximum width to which the widest columns of a narrow picture are extended, in logical pixels.
const MAX_COLUMN_WIDTH: f64 = 240.0;
/// Length of arrow heads, in logical pixels.
const HEAD_LENGTH: f64 = 7.0;
/// Width of arrow heads, in logical pixels.
const HEAD_WIDTH: f64 = 3.4;

const WHITE: RGBColor = RGBColor(255, 255, 255);
/// Background colour of every other column.
const SHADE: RGBColor = RGBColor(246, 248, 250);
const BLUE: RGBColor = palette::COLOURS[0];
const ORANGE: RGBColor = palette::COLOURS[1];
const GREEN: RGBColor = palette::COLOURS[2];
const INDIGO: RGBColor = palette::COLOURS[5];

/// Entries of the legend: each kind of data movement, and its name.
const LEGEND: [(DataMovement, &str); 6] = [
    (DataMovement::Put, "put"),
    (DataMovement::PutReduce, "put and reduce"),
    (DataMovement::Get, "get"),
    (DataMovement::GetReduce, "get and reduce"),
    (DataMovement::Copy, "local copy"),
    (DataMovement::Reduce, "local reduce"),
];

impl DataMovement {
    fn colour(self) -> RGBColor {
        match self {
            Self::Put | Self::Get => BLUE,
            Self::PutReduce | Self::GetReduce => ORANGE,
            Self::Copy => GREEN,
            Self::Reduce => INDIGO,
        }
    }

    /// Returns the marker of an operation within a rank's memory.
    fn marker(self) -> Option<Marker> {
        match self {
            Self::Copy => Some(Marker::Square),
            Self::Reduce => Some(Marker::Diamond),
            Self::Put | Self::PutReduce | Self::Get | Self::GetReduce => None,
        }
    }
}

/// Picture of a schedule, with the positions of its columns and of the lines of its ranks.
pub(super) struct ScheduleSheet<'a> {
    picture: &'a SchedulePicture,
    /// Left edges of the columns of steps, followed by the right edge of the last one.
    edges: Vec<f64>,
    row: f64,
    /// Maximum width of an arrow's line, in logical pixels.
    broadest: f64,
}

impl<'a> ScheduleSheet<'a> {
    pub(super) fn new(picture: &'a SchedulePicture) -> Self {
        let mut arrows = vec![0u32; picture.steps as usize];
        for drawn in picture.marks.iter().filter(|drawn| drawn.mark.from != drawn.mark.to) {
            if let Some(arrows) = arrows.get_mut(drawn.mark.step as usize) {
                *arrows += 1;
            }
        }
        let [empty, narrow, wide] = COLUMNS;
        let crowded = |arrows: u32| f64::from(arrows) > 1.5 * f64::from(picture.ranks);
        let columns = arrows.iter().map(|&arrows| match arrows {
            0 => empty,
            arrows if crowded(arrows) => wide,
            _ => narrow,
        });
        let total: f64 = columns.clone().sum();
        let room = MIN_WIDTH - 2.0 * MARGIN - NAMES;
        let growth = if total < room && total > 0.0 { (room / total).min(MAX_COLUMN_WIDTH / wide) } else { 1.0 };
        let mut edges = vec![MARGIN + NAMES];
        edges.extend(columns.scan(MARGIN + NAMES, |edge, column| {
            *edge += column * growth;
            Some(*edge)
        }));
        let row = if picture.ranks > 16 { 30.0 } else { 46.0 };
        let broadest = if arrows.iter().any(|&arrows| crowded(arrows)) { 1.8 } else { 3.2 };
        Self { picture, edges, row, broadest }
    }

    fn width(&self) -> f64 {
        (self.x(self.picture.steps) + MARGIN).max(MIN_WIDTH)
    }

    fn bottom(&self) -> f64 {
        HEAD + 14.0 + f64::from(self.picture.ranks) * self.row
    }

    /// Returns the left edge of the column of a step.
    fn x(&self, step: u32) -> f64 {
        self.edges.get(step as usize).or(self.edges.last()).copied().unwrap_or(0.0)
    }

    /// Returns the vertical position of a rank's line.
    fn y(&self, rank: u32) -> f64 {
        HEAD + 14.0 + (f64::from(rank) + 0.5) * self.row
    }

    fn draw_grid<DB: DrawingBackend>(&self, canvas: &Canvas<DB>) -> Result<(), ChartError> {
        let (right, bottom) = (self.x(self.picture.steps), self.bottom());
        for step in 0..self.picture.steps {
            let (left, next) = (self.x(step), self.x(step + 1));
            if step % 2 == 0 {
                canvas.rectangle((left, HEAD + 14.0), (next, bottom), SHADE)?;
            }
            let lettering = TextStyle::new(palette::TEXT, 11.5).align(HPos::Center);
            canvas.text(&step.to_string(), ((left + next) / 2.0, HEAD), lettering)?;
        }
        canvas.text("step", (MARGIN, HEAD), TextStyle::new(palette::TEXT, 11.5))?;
        for rank in 0..self.picture.ranks {
            let y = self.y(rank);
            canvas.line(&[(self.x(0), y), (right, y)], Stroke { colour: palette::GRID, width: 1.0 })?;
            canvas.text(&format!("rank {rank}"), (MARGIN, y), TextStyle::new(palette::INK, 12.0))?;
        }
        Ok(())
    }

    /// Draws all marks; arrows first, so that other marks are on top of them.
    fn draw_marks<DB: DrawingBackend>(&self, canvas: &Canvas<DB>) -> Result<(), ChartError> {
        let labels = self.picture.has_labels();
        for drawn in self.picture.marks.iter().filter(|drawn| drawn.mark.from != drawn.mark.to) {
            let mark = drawn.mark;
            let from = (self.x(mark.step) + 6.0, self.y(mark.from));
            let to = (self.x(mark.step + 1) - 5.0, self.y(mark.to));
            let width = (1.1 + 0.5 * f64::from(drawn.operations).log2()).min(self.broadest);
            arrow(canvas, from, to, mark.movement, width)?;
            canvas.disc(from, 2.2, mark.movement.colour())?;
        }
        for drawn in &self.picture.marks {
            let mark = drawn.mark;
            if let Some(marker) = mark.movement.marker() {
                let centre = (f64::midpoint(self.x(mark.step), self.x(mark.step + 1)), self.y(mark.from));
                // If both kinds of marks are at one position, they are drawn side by side.
                let offset = if mark.movement == DataMovement::Copy { -6.0 } else { 6.0 };
                canvas.marker((centre.0 + offset, centre.1), 4.2, marker, mark.movement.colour())?;
            } else if labels && mark.from != mark.to {
                let away = if mark.to > mark.from { -8.5 } else { 8.5 };
                let label_position = (self.x(mark.step) + 4.0, self.y(mark.from) + away);
                canvas.text(&label(drawn), label_position, TextStyle::new(palette::TEXT, 9.0))?;
            }
        }
        Ok(())
    }

    fn draw_legend<DB: DrawingBackend>(&self, canvas: &Canvas<DB>) -> Result<(), ChartError> {
        let y = self.bottom() + 24.0;
        let lettering = TextStyle::new(palette::TEXT, 11.5);
        let mut x = MARGIN;
        let used = |movement: DataMovement| self.picture.marks.iter().any(|drawn| drawn.mark.movement == movement);
        for (movement, name) in LEGEND.into_iter().filter(|(movement, _)| used(*movement)) {
            match movement.marker() {
                Some(marker) => canvas.marker((x + 13.0, y), 4.2, marker, movement.colour())?,
                None => arrow(canvas, (x, y), (x + 26.0, y), movement, 1.1)?,
            }
            canvas.text(name, (x + 33.0, y), lettering)?;
            x += 33.0 + lettering.width(name)? + 22.0;
        }
        let several = self.picture.marks.iter().any(|drawn| drawn.operations > 1);
        let notes = [
            self.picture.has_labels().then_some("numbers: chunks"),
            several.then_some("broad: several transfers"),
            Some(self.picture.remark.as_str()).filter(|remark| !remark.is_empty()),
        ];
        let caption = notes.into_iter().flatten().collect::<Vec<_>>().join(" · ");
        let room = self.width() - 2.0 * MARGIN;
        canvas.text(&lettering.fit(&caption, room)?, (MARGIN, y + 22.0), lettering)
    }
}

impl Drawing for ScheduleSheet<'_> {
    fn size(&self) -> (u32, u32) {
        (self.width().ceil() as u32, (self.bottom() + FOOT).ceil() as u32)
    }

    fn draw<DB: DrawingBackend>(&self, backend: DB, drop: f64) -> Result<(), ChartError> {
        let canvas = Canvas::new(backend.into_drawing_area(), drop);
        canvas.fill(WHITE)?;
        let room = self.width() - 2.0 * MARGIN;
        let title = TextStyle::new(palette::INK, 19.0).bold();
        canvas.text(&title.fit(&self.picture.title, room)?, (MARGIN, 34.0), title)?;
        let subtitle = TextStyle::new(palette::TEXT, 13.0);
        canvas.text(&subtitle.fit(&self.picture.subtitle, room)?, (MARGIN, 60.0), subtitle)?;
        self.draw_grid(&canvas)?;
        self.draw_marks(&canvas)?;
        self.draw_legend(&canvas)?;
        canvas.finish()
    }
}

/// Returns the label of a transfer: `5`, `0–7`, or `5 …` for several transfers.
fn label(drawn: &MergedMark) -> String {
    let (first, last) = drawn.chunks;
    let chunks = if first == last { first.to_string() } else { format!("{first}–{last}") };
    if drawn.operations == 1 { chunks } else { format!("{chunks} …") }
}

fn arrow<DB: DrawingBackend>(
    canvas: &Canvas<DB>,
    from: Position,
    to: Position,
    movement: DataMovement,
    width: f64,
) -> Result<(), ChartError> {
    let (dx, dy) = (to.0 - from.0, to.1 - from.1);
    let length = dx.hypot(dy).max(1.0);
    let (ux, uy) = (dx / length, dy / length);
    let neck = (to.0 - ux * HEAD_LENGTH, to.1 - uy * HEAD_LENGTH);
    let stroke = Stroke { colour: movement.colour(), width };
    if matches!(movement, DataMovement::Get | DataMovement::GetReduce) {
        canvas.dashes(&[from, neck], stroke, 5.0, 3.0)?;
    } else {
        canvas.line(&[from, neck], stroke)?;
    }
    let half = HEAD_WIDTH.max(width * 1.6);
    let corners = [to, (neck.0 - uy * half, neck.1 + ux * half), (neck.0 + uy * half, neck.1 - ux * half)];
    canvas.polygon(&corners, movement.colour())
}
