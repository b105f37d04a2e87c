//! PDF of a drawing: one page with vector graphics and the embedded fonts, for papers.
//!
//! Source of the format: ISO 32000-1 (PDF 1.7): file structure §7.5, graphics operators §8.5, composite fonts §9.7. Text
//! is written by glyph numbers (`Identity-H`), with a map to Unicode for copying. Streams are not compressed, and the file
//! has no date, so that equal drawings give equal bytes.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt::Write as _;

use ab_glyph::{Font, FontRef};
use fabricast_topologies::visible::visible;
use plotters_backend::text_anchor::HPos;
use plotters_backend::{
    BackendColor, BackendCoord, BackendStyle, BackendTextStyle, DrawingBackend, DrawingErrorKind, FontStyle,
};

use super::canvas::DETAIL;
use super::{ChartError, font};

/// Points of a logical pixel: 96 pixels and 72 points are an inch.
const POINTS: f64 = 0.75;
/// Size of an em ÷ size of a text in plotters, which is the height of a line.
const LINE: f64 = 1.24;
/// Distance of the baseline from the middle of a text in ems: half of the x-height of DejaVu Sans.
const MIDDLE: f64 = 0.27;
/// Distance of the control points of a quarter of a circle, in radii.
const QUARTER: f64 = 0.5523;

/// Drawn page, from which the file is made.
pub(super) struct Page {
    width: u32,
    height: u32,
    content: String,
    fonts: [Typeface; 2],
}

/// Embedded font with the characters that the page uses.
struct Typeface {
    name: &'static str,
    file: &'static [u8],
    font: FontRef<'static>,
    /// Used characters by glyph number.
    used: BTreeMap<u16, char>,
}

impl Typeface {
    fn new(name: &'static str, file: &'static [u8]) -> Result<Self, ChartError> {
        let font = FontRef::try_from_slice(file).map_err(|error| ChartError::Draw(error.to_string()))?;
        Ok(Self { name, file, font, used: BTreeMap::new() })
    }

    /// Width of a glyph in thousandths of an em.
    fn advance(&self, glyph: u16) -> f64 {
        let units = f64::from(self.font.units_per_em().unwrap_or(2048.0));
        f64::from(self.font.h_advance_unscaled(ab_glyph::GlyphId(glyph))) / units * 1000.0
    }
}

impl Page {
    /// Creates a page of a size in drawn pixels.
    ///
    /// # Errors
    /// [`ChartError::Draw`] if an embedded font cannot be read.
    pub(super) fn new((width, height): (u32, u32)) -> Result<Self, ChartError> {
        let fonts = [Typeface::new("DejaVuSans", font::REGULAR)?, Typeface::new("DejaVuSans-Bold", font::BOLD)?];
        Ok(Self { width, height, content: String::new(), fonts })
    }

    /// Returns the bytes of the file.
    pub(super) fn file(&self) -> Vec<u8> {
        let scale = POINTS / f64::from(DETAIL);
        let size = |pixels: u32| number(f64::from(pixels) * scale);
        let (width, height) = (size(self.width), size(self.height));
        let mut objects: Vec<Vec<u8>> = Vec::new();
        let mut resources = String::new();
        // Objects 1 to 4 are the catalog, the list of pages, the page and its content.
        let mut font_objects = Vec::new();
        for (number, face) in self.fonts.iter().enumerate().filter(|(_, face)| !face.used.is_empty()) {
            let first = 5 + font_objects.len();
            let _ = write!(resources, "/F{number} {first} 0 R ");
            font_objects.extend(face.objects(first));
        }
        let page = format!(
            "<</Type/Page/Parent 2 0 R/MediaBox[0 0 {width} {height}]/Resources<</Font<<{resources}>>>>/Contents 4 0 R>>"
        );
        let content = format!("1 j 1 J {} 0 0 {} 0 {height} cm\n{}", number(scale), number(-scale), self.content);
        objects.push(b"<</Type/Catalog/Pages 2 0 R>>".to_vec());
        objects.push(b"<</Type/Pages/Kids[3 0 R]/Count 1>>".to_vec());
        objects.push(page.into_bytes());
        objects.push(stream("", content.as_bytes()));
        objects.extend(font_objects);
        assemble(&objects)
    }

    fn colour(&mut self, colour: BackendColor, operator: &str) {
        // A translucent colour is blended with the white page.
        let part = |value: u8| (f64::from(value) * colour.alpha + 255.0 * (1.0 - colour.alpha)) / 255.0;
        let (red, green, blue) = colour.rgb;
        let [red, green, blue] = [red, green, blue].map(|value| number(part(value)));
        let _ = writeln!(self.content, "{red} {green} {blue} {operator}");
    }

    fn path(&mut self, points: impl IntoIterator<Item = BackendCoord>, paint: &str) {
        for (count, (x, y)) in points.into_iter().enumerate() {
            let _ = write!(self.content, "{x} {y} {} ", if count == 0 { 'm' } else { 'l' });
        }
        let _ = writeln!(self.content, "{paint}");
    }
}

impl Typeface {
    /// Objects of the font, numbered from `first`: the composite font, the font of its glyphs, the descriptor, the file and
    /// the map to Unicode.
    fn objects(&self, first: usize) -> [Vec<u8>; 5] {
        let name = self.name;
        let [glyphs, descriptor, file, unicode] = [first + 1, first + 2, first + 3, first + 4];
        let widths: Vec<String> =
            self.used.keys().map(|&glyph| format!("{glyph}[{}]", number(self.advance(glyph)))).collect();
        let mut map = String::from(
            "/CIDInit /ProcSet findresource begin 12 dict begin begincmap /CMapName /Used def /CMapType 2 def\n\
             1 begincodespacerange <0000> <FFFF> endcodespacerange\n",
        );
        for part in self.used.iter().collect::<Vec<_>>().chunks(100) {
            let _ = writeln!(map, "{} beginbfchar", part.len());
            for (glyph, character) in part {
                let units: String =
                    character.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("{unit:04X}")).collect();
                let _ = writeln!(map, "<{glyph:04X}> <{units}>");
            }
            map.push_str("endbfchar\n");
        }
        map.push_str("endcmap end end");
        [
            format!(
                "<</Type/Font/Subtype/Type0/BaseFont/{name}/Encoding/Identity-H/DescendantFonts[{glyphs} 0 R]/ToUnicode \
                 {unicode} 0 R>>"
            )
            .into_bytes(),
            format!(
                "<</Type/Font/Subtype/CIDFontType2/BaseFont/{name}/CIDSystemInfo<</Registry(Adobe)/Ordering(Identity)\
                 /Supplement 0>>/FontDescriptor {descriptor} 0 R/CIDToGIDMap/Identity/W[{}]>>",
                widths.join(" ")
            )
            .into_bytes(),
            // Figures of DejaVu Sans 2.37, in thousandths of an em.
            format!(
                "<</Type/FontDescriptor/FontName/{name}/Flags 4/FontBBox[-1021 -463 1793 1232]/ItalicAngle 0/Ascent 928\
                 /Descent -236/CapHeight 729/StemV 80/FontFile2 {file} 0 R>>"
            )
            .into_bytes(),
            stream(&format!("/Length1 {}", self.file.len()), self.file),
            stream("", map.as_bytes()),
        ]
    }
}

fn stream(keys: &str, content: &[u8]) -> Vec<u8> {
    let head = format!("<<{keys}/Length {}>>\nstream\n", content.len());
    [head.as_bytes(), content, b"\nendstream"].concat()
}

/// Returns the file with these objects, numbered from 1, of which the first is the catalog.
fn assemble(objects: &[Vec<u8>]) -> Vec<u8> {
    // The bytes after the version mark the file as binary.
    let mut file = b"%PDF-1.7\n%\xE2\xE3\xCF\xD3\n".to_vec();
    let mut table = format!("xref\n0 {}\n0000000000 65535 f \n", objects.len() + 1);
    for (number, object) in (1..).zip(objects) {
        let _ = writeln!(table, "{:010} 00000 n ", file.len());
        file.extend_from_slice(format!("{number} 0 obj\n").as_bytes());
        file.extend_from_slice(object);
        file.extend_from_slice(b"\nendobj\n");
    }
    let start = file.len();
    let _ = write!(table, "trailer\n<</Size {}/Root 1 0 R>>\nstartxref\n{start}\n%%EOF\n", objects.len() + 1);
    file.extend_from_slice(table.as_bytes());
    file
}

fn number(value: f64) -> String {
    let text = format!("{value:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
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
        self.colour(style.color(), "RG");
        let _ = writeln!(self.content, "{} w", style.stroke_width());
        self.path(path, "S");
        Ok(())
    }

    fn draw_circle<S: BackendStyle>(&mut self, (x, y): BackendCoord, radius: u32, style: &S, fill: bool) -> Drawn {
        self.colour(style.color(), if fill { "rg" } else { "RG" });
        let (x, y, r) = (f64::from(x), f64::from(y), f64::from(radius));
        let k = r * QUARTER;
        let _ = write!(self.content, "{} {} m ", number(x + r), number(y));
        for [a, b, c, d, e, f] in [
            [x + r, y + k, x + k, y + r, x, y + r],
            [x - k, y + r, x - r, y + k, x - r, y],
            [x - r, y - k, x - k, y - r, x, y - r],
            [x + k, y - r, x + r, y - k, x + r, y],
        ] {
            let curve = [a, b, c, d, e, f].map(number).join(" ");
            let _ = write!(self.content, "{curve} c ");
        }
        let _ = writeln!(self.content, "{}", if fill { "f" } else { "s" });
        Ok(())
    }

    fn fill_polygon<S: BackendStyle, I: IntoIterator<Item = BackendCoord>>(&mut self, corners: I, style: &S) -> Drawn {
        self.colour(style.color(), "rg");
        self.path(corners, "f");
        Ok(())
    }

    fn draw_text<T: BackendTextStyle>(&mut self, text: &str, style: &T, (x, y): BackendCoord) -> Drawn {
        let number_of_face = usize::from(matches!(style.style(), FontStyle::Bold));
        let em = style.size() / LINE;
        let (mut codes, mut width) = (String::new(), 0.0);
        if let Some(face) = self.fonts.get_mut(number_of_face) {
            for character in visible(text).chars() {
                let glyph = face.font.glyph_id(character).0;
                face.used.insert(glyph, character);
                width += face.advance(glyph) / 1000.0 * em;
                let _ = write!(codes, "{glyph:04X}");
            }
        }
        let left = match style.anchor().h_pos {
            HPos::Left => 0.0,
            HPos::Center => width / 2.0,
            HPos::Right => width,
        };
        self.colour(style.color(), "rg");
        let (x, y, em) = (number(f64::from(x) - left), number(f64::from(y) + MIDDLE * em), number(em));
        // Text is upright in the flipped coordinates of the page.
        let _ = writeln!(self.content, "BT /F{number_of_face} {em} Tf 1 0 0 -1 {x} {y} Tm <{codes}> Tj ET");
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

    fn position(file: &[u8], text: &str) -> usize {
        file.windows(text.len()).position(|part| part == text.as_bytes()).unwrap_or_else(|| panic!("{text}"))
    }

    /// The table of objects has the offset of each object, and each stream has its stated length.
    #[test]
    fn offsets_and_lengths_match_the_file() {
        let file = chart("8 × GPU");
        assert!(file.starts_with(b"%PDF-1.7\n") && file.ends_with(b"%%EOF\n"));
        let tail = String::from_utf8_lossy(&file[position(&file, "\nxref\n") + 1..]).into_owned();
        let start: usize = tail.split("startxref\n").nth(1).unwrap().lines().next().unwrap().parse().unwrap();
        assert_eq!(&file[start..start + 5], b"xref\n");
        let offsets: Vec<usize> =
            tail.lines().filter(|line| line.ends_with(" 00000 n ")).map(|line| line[..10].parse().unwrap()).collect();
        assert!(offsets.len() >= 14, "{offsets:?}");
        for (number, &offset) in (1..).zip(&offsets) {
            let head = format!("{number} 0 obj\n");
            assert_eq!(&file[offset..offset + head.len()], head.as_bytes());
            let end = offsets.get(number).copied().unwrap_or(start);
            let object = &file[offset..end];
            if object.windows(8).any(|part| part == b"\nstream\n") {
                let begin = position(object, "\nstream\n") + 8;
                let keys = String::from_utf8_lossy(&object[..begin]).into_owned();
                let length: usize = keys.split("/Length ").nth(1).unwrap().split('>').next().unwrap().parse().unwrap();
                assert!(object[begin + length..].starts_with(b"\nendstream\nendobj\n"), "{keys}");
            }
        }
    }

    /// Texts can be copied: the map to Unicode has every character, and each glyph of a text is in the map.
    #[test]
    fn glyphs_map_to_the_characters_of_the_text() {
        let file = String::from_utf8_lossy(&chart("8 × GPU")).into_owned();
        let map: std::collections::BTreeMap<&str, char> = file
            .lines()
            .filter_map(|line| line.strip_prefix('<')?.strip_suffix('>')?.split_once("> <"))
            .filter_map(|(glyph, unit)| Some((glyph, char::from_u32(u32::from_str_radix(unit, 16).ok()?)?)))
            .collect();
        let shown: Vec<String> = file
            .lines()
            .filter_map(|line| line.strip_suffix("> Tj ET")?.rsplit_once('<'))
            .map(|(_, codes)| (0..codes.len()).step_by(4).filter_map(|k| map.get(&codes[k..k + 4])).collect())
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
