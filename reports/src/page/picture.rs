//! Pictures that are drawn elsewhere in this crate, for a page: fabrics in the page's own colours, schedules on white, which a dark page
//! turns round.

use fabricast_sim::schedule::Schedule;
use fabricast_topologies::Fabric;

use crate::chart::Format;
use crate::markup::Markup;
use crate::steps::{self, StepsError};
use crate::topology;

/// A picture with its caption; only this crate draws one, so nothing in it is unescaped.
#[derive(Clone, Debug, PartialEq)]
pub struct Picture {
    caption: String,
    class: &'static str,
    svg: String,
}

impl Picture {
    /// A fabric, with the load of its links if there is one.
    #[must_use]
    pub fn of_fabric(caption: impl Into<String>, fabric: &Fabric, options: &topology::Options<'_>) -> Self {
        Self { caption: caption.into(), class: "picture", svg: topology::inline(fabric, options) }
    }

    /// A schedule, steps against ranks.
    ///
    /// # Errors
    /// As [`steps::render`].
    pub fn of_schedule(caption: impl Into<String>, schedule: &Schedule) -> Result<Self, StepsError> {
        let svg = String::from_utf8_lossy(&steps::render(schedule, Format::Svg)?).into_owned();
        // Shown as wide as the page: the view box says the proportions.
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

/// The part of the style sheet that fabrics need.
pub(super) fn style() -> String {
    let (light, dark) = (topology::LIGHT, topology::DARK);
    format!(
        ".fabric {{\n{light}}}\n\
         @media (prefers-color-scheme: dark) {{ :root:not([data-theme=\"light\"]) .fabric {{\n{dark}}} }}\n\
         :root[data-theme=\"dark\"] .fabric {{\n{dark}}}\n"
    )
}
