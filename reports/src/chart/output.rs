//! Rendering of figures to the bytes of a file.

use fabricast_topologies::visible::visible_in_xml;
use plotters::backend::{BitMapBackend, SVGBackend};
use plotters::prelude::{DrawingBackend, IntoDrawingArea};
use plotters::style::RGBColor;

use super::canvas::{Canvas, DETAIL, TextStyle};
use super::figure::Figure;
use super::layout::FigureLayout;
use super::legend::FigureLegend;
use super::panel::Panel;
use super::pdf::Page;
use super::{ChartError, Format, font, palette};

/// Number of drawn pixels that are averaged to one pixel of the PNG, in each direction.
const SMOOTHING: u32 = 2;
/// Vertical correction of texts in plotters' bitmap back end, in ems. The back end draws the baseline 0.12 em below the
/// centre, whereas SVG's `0.5ex` is 0.27 em in DejaVu Sans.
const BITMAP_DROP: f64 = 0.15;
/// Resolution in pixels per metre at two pixels per logical pixel (192 dpi).
const DENSITY: u32 = 7559;

/// Draws a figure and returns the bytes of the file.
///
/// # Errors
/// [`ChartError::NoData`] if a panel has no point to draw; other variants are failures of the drawing library.
pub fn render(figure: &Figure, format: Format) -> Result<Vec<u8>, ChartError> {
    font::register()?;
    let panels: Option<Vec<Panel<'_>>> = figure.panels.iter().map(Panel::new).collect();
    let panels = panels.filter(|panels| !panels.is_empty());
    let panels = panels.ok_or_else(|| ChartError::NoData { title: figure.title.clone() })?;
    let legend = FigureLegend::new(figure)?;
    let layout = FigureLayout::new(figure, legend.width);
    bytes(&FigureSheet { figure, panels, legend, layout }, format)
}

/// Picture that any back end can draw. Coordinates are logical pixels.
pub(crate) trait Drawing {
    /// Returns width and height in logical pixels.
    fn size(&self) -> (u32, u32);

    /// Draws the whole picture with a back end. `drop`: see [`Canvas::new`].
    fn draw<DB: DrawingBackend>(&self, backend: DB, drop: f64) -> Result<(), ChartError>;
}

/// Draws a picture and returns the bytes of the file.
///
/// # Errors
/// [`ChartError`] if the drawing library or the PNG encoder fails.
pub(crate) fn bytes(drawing: &impl Drawing, format: Format) -> Result<Vec<u8>, ChartError> {
    font::register()?;
    match format {
        Format::Svg => svg(drawing).map(String::into_bytes),
        Format::Png => png(drawing),
        Format::Pdf => pdf(drawing),
    }
}

fn svg(drawing: &impl Drawing) -> Result<String, ChartError> {
    let (width, height) = drawing.size();
    let drawn = (width * DETAIL, height * DETAIL);
    let mut text = String::new();
    drawing.draw(SVGBackend::with_string(&mut text, drawn), 0.0)?;
    // The view box has the size as drawn; the picture is shown at its logical size.
    let (as_drawn, as_shown) = (size_attributes(drawn.0, drawn.1), size_attributes(width, height));
    Ok(visible_in_xml(&text.replacen(&as_drawn, &as_shown, 1)).into_owned())
}

fn pdf(drawing: &impl Drawing) -> Result<Vec<u8>, ChartError> {
    let (width, height) = drawing.size();
    let mut page = Page::new((width * DETAIL, height * DETAIL))?;
    drawing.draw(&mut page, 0.0)?;
    Ok(page.file())
}

fn png(drawing: &impl Drawing) -> Result<Vec<u8>, ChartError> {
    let (width, height) = drawing.size();
    let drawn = (width * DETAIL, height * DETAIL);
    let mut pixels = vec![255; 3 * drawn.0 as usize * drawn.1 as usize];
    drawing.draw(BitMapBackend::with_buffer(&mut pixels, drawn), BITMAP_DROP)?;
    let smooth = average(&pixels, drawn.0 as usize);
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, drawn.0 / SMOOTHING, drawn.1 / SMOOTHING);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    encoder.set_pixel_dims(Some(png::PixelDimensions { xppu: DENSITY, yppu: DENSITY, unit: png::Unit::Meter }));
    let mut writer = encoder.write_header()?;
    writer.write_image_data(&smooth)?;
    writer.finish()?;
    Ok(file)
}

/// Figure with the positions of all parts, ready to draw with any back end.
struct FigureSheet<'a> {
    figure: &'a Figure,
    panels: Vec<Panel<'a>>,
    legend: FigureLegend,
    layout: FigureLayout,
}

impl Drawing for FigureSheet<'_> {
    fn size(&self) -> (u32, u32) {
        (self.layout.width.ceil() as u32, self.layout.height as u32)
    }

    fn draw<DB: DrawingBackend>(&self, backend: DB, drop: f64) -> Result<(), ChartError> {
        let canvas = Canvas::new(backend.into_drawing_area(), drop);
        canvas.fill(RGBColor(255, 255, 255))?;
        let title = TextStyle::new(palette::INK, 19.0).bold();
        canvas.text(&title.fit(&self.figure.title, self.layout.title_width)?, self.layout.title, title)?;
        let subtitle = TextStyle::new(palette::TEXT, 13.0);
        canvas.text(&subtitle.fit(&self.figure.subtitle, self.layout.title_width)?, self.layout.subtitle, subtitle)?;
        if let (Some(ribbon), Some(first)) = (&self.figure.ribbon, self.panels.first()) {
            ribbon.draw(&canvas, self.layout.ribbon, first.x())?;
        }
        let row_title = TextStyle::new(palette::INK, 15.0).bold();
        for (text, &position) in self.figure.row_titles.iter().zip(&self.layout.row_titles) {
            canvas.text(&row_title.fit(text, self.layout.title_width)?, position, row_title)?;
        }
        for (panel, (&frame, &x_title)) in self.panels.iter().zip(self.layout.panels.iter().zip(&self.layout.x_titles))
        {
            panel.draw(&canvas, frame, x_title)?;
        }
        self.legend.draw(&canvas, self.layout.legend)?;
        canvas.finish()
    }
}

fn size_attributes(width: u32, height: u32) -> String {
    format!("<svg width=\"{width}\" height=\"{height}\"")
}

/// Averages squares of [`SMOOTHING`] × [`SMOOTHING`] pixels of an RGB picture.
fn average(pixels: &[u8], width: usize) -> Vec<u8> {
    let n = SMOOTHING as usize;
    let row = 3 * width;
    let mut smooth = Vec::with_capacity(pixels.len() / (n * n));
    for band in pixels.chunks_exact(row * n) {
        for x in 0..width / n {
            for channel in 0..3 {
                let square =
                    band.chunks_exact(row).flat_map(|line| line.iter().skip(3 * n * x + channel).step_by(3).take(n));
                let sum: usize = square.map(|&value| usize::from(value)).sum();
                smooth.push(((sum + n * n / 2) / (n * n)) as u8);
            }
        }
    }
    smooth
}
