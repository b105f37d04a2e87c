//! Pictures that other modules of this crate draw, for a page: fabrics in the colours of the page, and schedules on
//! white, which a dark page inverts.

use fabricast_sim::schedule::Schedule;
use fabricast_topologies::Fabric;

use crate::chart::Format;
use crate::markup::Markup;
use crate::steps::{self, StepsError};
use crate::topology;

/// Picture with its caption. Only this crate creates pictures, so that their SVG is always escaped.
#[derive(Clone, Debug, PartialEq)]
pub struct Picture {
    caption: String,
    class: &'static str,
    svg: String,
}

impl Picture {
    /// Creates the picture of a fabric, with the load of its links if `options` contains it.
    #[must_use]
    pub fn from_fabric(caption: impl Into<String>, fabric: &Fabric, options: &topology::Options<'_>) -> Self {
        Self { caption: caption.into(), class: "picture", svg: topology::inline(fabric, options) }
    }

    /// Creates the picture of a schedule, with steps against ranks.
    ///
    /// # Errors
    /// See [`steps::render`].
    pub fn from_schedule(caption: impl Into<String>, schedule: &Schedule) -> Result<Self, StepsError> {
        let svg = String::from_utf8_lossy(&steps::render(schedule, Format::Svg)?).into_owned();
        // The picture is shown at page width; its view box determines the proportions.
        Ok(Self { caption: caption.into(), class: "picture drawn", svg })
    }

    pub(super) fn write(&self, markup: &mut Markup) {
        markup.open("figure", &[("class", self.class)]);
        markup.text("figcaption", &[], &self.caption);
        markup
            .open("div", &[("class", "scroll"), ("role", "region"), ("aria-label", &self.caption), ("tabindex", "0")]);
        markup.raw(&self.svg);
        markup.close();
        markup.close();
    }
}

/// Returns the part of the style sheet that pictures of fabrics use.
pub(super) fn style() -> String {
    let (light, dark) = (topology::LIGHT, topology::DARK);
    format!(
        ".fabric {{\n{light}}}\n\
         @media (prefers-color-scheme: dark) {{ :root:not([data-theme=\"light\"]) .fabric {{\n{dark}}} }}\n\
         :root[data-theme=\"dark\"] .fabric {{\n{dark}}}\n"
    )
}
