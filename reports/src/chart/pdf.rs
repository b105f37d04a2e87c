//! PDF of a drawing: one page with vector graphics and the embedded fonts, for papers.
//!
//! `pdf-writer` writes the structure of the file. Text is written by glyph numbers (`Identity-H`), with a map to Unicode for
//! copying. Streams are not compressed, and the file has no date, so that equal drawings give equal bytes.

use std::collections::BTreeMap;
use std::convert::Infallible;

use ab_glyph::{Font, FontRef};
use fabricast_topologies::visible::visible;
use pdf_writer::types::{CidFontType, FontFlags, LineCapStyle, LineJoinStyle, SystemInfo, UnicodeCmap};
use pdf_writer::{Content, Finish, Name, Pdf, Rect, Ref, Settings, Str};
use plotters_backend::text_anchor::HPos;
use plotters_backend::{
    BackendColor, BackendCoord, BackendStyle, BackendTextStyle, DrawingBackend, DrawingErrorKind, FontStyle,
};

use super::canvas::DETAIL;
use super::{ChartError, font};

/// Points of a logical pixel: 96 pixels and 72 points are an inch.
const POINTS: f32 = 0.75;
/// Size of an em ÷ size of a text in plotters, which is the height of a line.
const LINE: f64 = 1.24;
/// Distance of the baseline from the middle of a text in ems: half of the x-height of DejaVu Sans.
const MIDDLE: f32 = 0.27;
/// Distance of the control points of a quarter of a circle, in radii.
const QUARTER: f32 = 0.5523;
/// Numbering of glyphs that are their own character codes (`Identity-H`).
const GLYPH_NUMBERS: SystemInfo<'_> = SystemInfo { registry: Str(b"Adobe"), ordering: Str(b"Identity"), supplement: 0 };

/// Drawn page, from which the file is made.
pub(super) struct Page {
    width: u32,
    height: u32,
    content: Content,
    fonts: [Typeface; 2],
}

/// Embedded font with the characters that the page uses.
struct Typeface {
    /// Name of the font on the page.
    alias: &'static [u8],
    name: &'static str,
    file: &'static [u8],
    font: FontRef<'static>,
    /// Used characters by glyph number.
    used: BTreeMap<u16, char>,
}

impl Typeface {
    fn new(alias: &'static [u8], name: &'static str, file: &'static [u8]) -> Result<Self, ChartError> {
        let font = FontRef::try_from_slice(file).map_err(|error| ChartError::Draw(error.to_string()))?;
        Ok(Self { alias, name, file, font, used: BTreeMap::new() })
    }

    /// Width of a glyph in thousandths of an em.
    fn advance(&self, glyph: u16) -> f32 {
        self.font.h_advance_unscaled(ab_glyph::GlyphId(glyph)) / self.font.units_per_em().unwrap_or(2048.0) * 1000.0
    }

    /// Writes the composite font `id` and the objects that it refers to, whose ids follow.
    fn write(&self, pdf: &mut Pdf, id: Ref) {
        let [glyphs, descriptor, file, unicode] = [1, 2, 3, 4].map(|offset| Ref::new(id.get() + offset));
        let name = Name(self.name.as_bytes());
        pdf.type0_font(id)
            .base_font(name)
            .encoding_predefined(Name(b"Identity-H"))
            .descendant_font(glyphs)
            .to_unicode(unicode);
        let mut font = pdf.cid_font(glyphs);
        font.subtype(CidFontType::Type2).base_font(name).system_info(GLYPH_NUMBERS).font_descriptor(descriptor);
        font.cid_to_gid_map_predefined(Name(b"Identity"));
        let mut widths = font.widths();
        for &glyph in self.used.keys() {
            widths.same(glyph, glyph, self.advance(glyph));
        }
        widths.finish();
        font.finish();
        // Figures of DejaVu Sans 2.37, in thousandths of an em.
        pdf.font_descriptor(descriptor)
            .name(name)
            .flags(FontFlags::SYMBOLIC)
            .bbox(Rect::new(-1021.0, -463.0, 1793.0, 1232.0))
            .italic_angle(0.0)
            .ascent(928.0)
            .descent(-236.0)
            .cap_height(729.0)
            .stem_v(80.0)
            .font_file2(file);
        pdf.stream(file, self.file).pair(Name(b"Length1"), self.file.len() as i32);
        let mut map = UnicodeCmap::new(Name(b"Used"), GLYPH_NUMBERS);
        self.used.iter().for_each(|(&glyph, &character)| map.pair(glyph, character));
        pdf.cmap(unicode, &map.finish());
    }
}

impl Page {
    /// Creates a page of a size in drawn pixels.
    ///
    /// # Errors
    /// [`ChartError::Draw`] if an embedded font cannot be read.
    pub(super) fn new((width, height): (u32, u32)) -> Result<Self, ChartError> {
        let fonts =
            [Typeface::new(b"F0", "DejaVuSans", font::REGULAR)?, Typeface::new(b"F1", "DejaVuSans-Bold", font::BOLD)?];
        let mut content = Content::with_settings(SETTINGS);
        let scale = POINTS / DETAIL as f32;
        content.set_line_join(LineJoinStyle::RoundJoin).set_line_cap(LineCapStyle::RoundCap);
        // The page has its origin at the bottom, drawings at the top.
        content.transform([scale, 0.0, 0.0, -scale, 0.0, height as f32 * scale]);
        Ok(Self { width, height, content, fonts })
    }

    /// Returns the bytes of the file.
    pub(super) fn file(self) -> Vec<u8> {
        let scale = POINTS / DETAIL as f32;
        let [catalog, pages, page, content] = [1, 2, 3, 4].map(Ref::new);
        let used: Vec<&Typeface> = self.fonts.iter().filter(|face| !face.used.is_empty()).collect();
        let ids = (5..).step_by(5).map(Ref::new);
        let mut pdf = Pdf::with_settings(SETTINGS);
        pdf.catalog(catalog).pages(pages);
        pdf.pages(pages).kids([page]).count(1);
        let mut sheet = pdf.page(page);
        sheet.parent(pages).media_box(Rect::new(0.0, 0.0, self.width as f32 * scale, self.height as f32 * scale));
        sheet.contents(content);
        let names = used.iter().map(|face| Name(face.alias));
        sheet.resources().fonts().pairs(names.zip(ids.clone()));
        sheet.finish();
        pdf.stream(content, &self.content.finish());
        used.iter().zip(ids).for_each(|(face, id)| face.write(&mut pdf, id));
        pdf.finish()
    }

    fn path(&mut self, points: impl IntoIterator<Item = BackendCoord>) -> &mut Content {
        for (count, (x, y)) in points.into_iter().enumerate() {
            let (x, y) = (x as f32, y as f32);
            if count == 0 {
                self.content.move_to(x, y)
            } else {
                self.content.line_to(x, y)
            };
        }
        &mut self.content
    }
}

/// Compact files: a line for each object and operator, without indentation.
const SETTINGS: Settings = Settings { pretty: false };

/// Returns red, green and blue from 0 to 1. A translucent colour is blended with the white page.
fn blended(colour: BackendColor) -> [f32; 3] {
    let (red, green, blue) = colour.rgb;
    let part = |value: u8| (f64::from(value) * colour.alpha + 255.0 * (1.0 - colour.alpha)) / 255.0;
    [red, green, blue].map(|value| part(value) as f32)
}

type Drawn = Result<(), DrawingErrorKind<Infallible>>;

impl DrawingBackend for &mut Page {
    type ErrorType = Infallible;

    fn get_size(&self) -> (u32, u32) {
        (self.width, self.height)
    }

    fn ensure_prepared(&mut self) -> Drawn {
        Ok(())
    }

    fn present(&mut self) -> Drawn {
        Ok(())
    }

    fn draw_pixel(&mut self, (x, y): BackendCoord, colour: BackendColor) -> Drawn {
        self.draw_rect((x, y), (x + 1, y + 1), &colour, true)
    }

    fn draw_line<S: BackendStyle>(&mut self, from: BackendCoord, to: BackendCoord, style: &S) -> Drawn {
        self.draw_path([from, to], style)
    }

    fn draw_rect<S: BackendStyle>(
        &mut self,
        (x0, y0): BackendCoord,
        (x1, y1): BackendCoord,
        style: &S,
        fill: bool,
    ) -> Drawn {
        let corners = [(x0, y0), (x1, y0), (x1, y1), (x0, y1)];
        if fill {
            return self.fill_polygon(corners, style);
        }
        self.draw_path(corners.into_iter().chain([(x0, y0)]), style)
    }

    fn draw_path<S: BackendStyle, I: IntoIterator<Item = BackendCoord>>(&mut self, path: I, style: &S) -> Drawn {
        let [red, green, blue] = blended(style.color());
        self.content.set_stroke_rgb(red, green, blue).set_line_width(style.stroke_width() as f32);
        self.path(path).stroke();
        Ok(())
    }

    fn draw_circle<S: BackendStyle>(&mut self, (x, y): BackendCoord, radius: u32, style: &S, fill: bool) -> Drawn {
        let [red, green, blue] = blended(style.color());
        let (x, y, r) = (x as f32, y as f32, radius as f32);
        let k = r * QUARTER;
        // Colours precede a path, inside of which they may not change.
        match fill {
            true => self.content.set_fill_rgb(red, green, blue),
            false => self.content.set_stroke_rgb(red, green, blue),
        };
        self.content.move_to(x + r, y);
        for [a, b, c, d, e, f] in [
            [x + r, y + k, x + k, y + r, x, y + r],
            [x - k, y + r, x - r, y + k, x - r, y],
            [x - r, y - k, x - k, y - r, x, y - r],
            [x + k, y - r, x + r, y - k, x + r, y],
        ] {
            self.content.cubic_to(a, b, c, d, e, f);
        }
        if fill {
            self.content.fill_nonzero()
        } else {
            self.content.close_and_stroke()
        };
        Ok(())
    }

    fn fill_polygon<S: BackendStyle, I: IntoIterator<Item = BackendCoord>>(&mut self, corners: I, style: &S) -> Drawn {
        let [red, green, blue] = blended(style.color());
        self.content.set_fill_rgb(red, green, blue);
        self.path(corners).fill_nonzero();
        Ok(())
    }

    fn draw_text<T: BackendTextStyle>(&mut self, text: &str, style: &T, (x, y): BackendCoord) -> Drawn {
        let is_bold = matches!(style.style(), FontStyle::Bold);
        let Some(face) = self.fonts.get_mut(usize::from(is_bold)) else { return Ok(()) };
        let em = (style.size() / LINE) as f32;
        let (mut codes, mut width) = (Vec::new(), 0.0);
        for character in visible(text).chars() {
            let glyph = face.font.glyph_id(character).0;
            face.used.insert(glyph, character);
            width += face.advance(glyph) / 1000.0 * em;
            codes.extend(glyph.to_be_bytes());
        }
        let left = match style.anchor().h_pos {
            HPos::Left => 0.0,
            HPos::Center => width / 2.0,
            HPos::Right => width,
        };
        let [red, green, blue] = blended(style.color());
        self.content.set_fill_rgb(red, green, blue).begin_text().set_font(Name(face.alias), em);
        // Text is upright in the flipped coordinates of the page.
        self.content.set_text_matrix([1.0, 0.0, 0.0, -1.0, x as f32 - left, y as f32 + MIDDLE * em]);
        self.content.show(Str(&codes)).end_text();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Axis, Bar, BarChart, Format, Quantity, render_bars};

    fn chart(name: &str) -> Vec<u8> {
        let bar = Bar { name: name.to_owned(), parts: vec![1e6, 2e6], remark: String::new() };
        let parts = vec!["compute".to_owned(), "data".to_owned()];
        let chart = BarChart {
            title: "Step".into(),
            subtitle: String::new(),
            axis: Axis::linear(Quantity::Time),
            parts,
            bars: vec![bar],
        };
        render_bars(&chart, Format::Pdf).unwrap()
    }

    /// Returns the content between two texts, at each occurrence.
    fn between<'a>(text: &'a str, begin: &str, end: &str) -> Vec<&'a str> {
        text.split(begin).skip(1).filter_map(|rest| rest.split(end).next()).collect()
    }

    /// Reads a string object: hexadecimal, or literal with escapes.
    fn string_bytes(text: &str) -> Vec<u8> {
        if let Some(hex) = text.strip_prefix('<') {
            let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
            let pair = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
            return digits.chunks(2).map(pair).collect();
        }
        let mut bytes = text.strip_prefix('(').unwrap().bytes().peekable();
        let mut read = Vec::new();
        while let Some(byte) = bytes.next().filter(|&byte| byte != b')' || bytes.peek().is_some()) {
            read.push(match (byte, bytes.peek().copied()) {
                (b'\\', Some(b'0'..=b'7')) => (0..3).fold(0, |code, _| code * 8 + (bytes.next().unwrap() - b'0')),
                (b'\\', Some(escaped)) => {
                    bytes.next();
                    match escaped {
                        b'n' => b'\n',
                        b'r' => b'\r',
                        b't' => b'\t',
                        b'b' => 8,
                        b'f' => 12,
                        other => other,
                    }
                }
                (byte, _) => byte,
            });
        }
        read
    }

    /// Texts can be copied: the map to Unicode has every character, and each glyph of a text is in the map.
    #[test]
    fn glyphs_map_to_the_characters_of_the_text() {
        let file = String::from_utf8_lossy(&chart("8 × GPU")).into_owned();
        let map: std::collections::BTreeMap<u16, char> = between(&file, "beginbfchar", "endbfchar")
            .into_iter()
            .flat_map(str::lines)
            .filter_map(|line| line.strip_prefix('<')?.strip_suffix('>')?.split_once("> <"))
            .filter_map(|(glyph, unit)| {
                let code = |text| u32::from_str_radix(text, 16).ok();
                Some((code(glyph)? as u16, char::from_u32(code(unit)?)?))
            })
            .collect();
        let shown: Vec<String> = between(&file, " Tm", "Tj")
            .into_iter()
            .map(|codes| {
                let glyphs = string_bytes(codes.trim());
                glyphs.chunks(2).filter_map(|code| map.get(&u16::from_be_bytes([code[0], code[1]]))).collect()
            })
            .collect();
        for text in ["8 × GPU", "Step", "compute", "3 s"] {
            assert!(shown.iter().any(|one| one == text), "{text}: {shown:?}");
        }
    }

    #[test]
    fn equal_drawings_give_equal_bytes() {
        assert_eq!(chart("a"), chart("a"));
        assert_ne!(chart("a"), chart("b"));
    }
}
