//! Parser of the key `placement`: a name, ranges, or a list.

use std::fmt;
use std::ops::Range;

use serde::Deserialize;
use serde::de::{SeqAccess, Visitor};
use toml::Spanned;

use super::super::placement::{Placement, parse_ranges};
use super::super::{JobError, Parallel};
use super::{JobText, Validator};

/// Placement as written in the job file.
#[derive(Clone, Debug)]
pub(super) enum PlacementText {
    /// Name or ranges: `"block"`, `"cyclic"`, `"0-7,16-23"`.
    Text(String),
    /// GPU numbers in rank order: `[0, 4, 1, 5]`.
    List(Vec<Spanned<u32>>),
}

const EXPECTED: &str =
    "\"block\", \"cyclic\", the GPU of each rank as `[0, 4, 1, 5]`, or ranges of GPUs as \"0-7,16-23\"";

impl<'de> Deserialize<'de> for PlacementText {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NameOrList;
        impl<'de> Visitor<'de> for NameOrList {
            type Value = PlacementText;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(EXPECTED)
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<PlacementText, E> {
                Ok(PlacementText::Text(text.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<PlacementText, A::Error> {
                let mut list = Vec::new();
                while let Some(gpu) = sequence.next_element()? {
                    list.push(gpu);
                }
                Ok(PlacementText::List(list))
            }
        }
        deserializer.deserialize_any(NameOrList)
    }
}

impl JobText {
    /// Returns the byte range of the GPU with the largest number, or of the whole value if it is not a list.
    pub(super) fn largest_gpu_span(&self) -> Option<Range<usize>> {
        let placement = self.placement.as_ref()?;
        let largest = match placement.get_ref() {
            PlacementText::Text(_) => None,
            PlacementText::List(list) => list.iter().max_by_key(|gpu| *gpu.get_ref()).map(Spanned::span),
        };
        Some(largest.unwrap_or(placement.span()))
    }

    pub(super) fn placement(&self, check: Validator<'_>) -> Result<Placement, JobError> {
        let Some(placement) = &self.placement else { return Ok(Placement::Block) };
        let wrong = |message: String| check.error(placement.span(), format!("placement: {message}"));
        let gpus = match placement.get_ref() {
            PlacementText::Text(text) => match text.as_str() {
                "block" => return Ok(Placement::Block),
                "cyclic" => return Ok(Placement::Cyclic),
                ranges if ranges.trim_start().starts_with(|first: char| first.is_ascii_digit()) => {
                    parse_ranges(ranges, "GPU").map_err(wrong)?
                }
                unknown => return Err(wrong(format!("`{unknown}` is not known; expected {EXPECTED}"))),
            },
            PlacementText::List(list) => list.iter().map(|gpu| *gpu.get_ref()).collect(),
        };
        if gpus.is_empty() {
            return Err(wrong(format!("no GPU; expected {EXPECTED}")));
        }
        Placement::from_list(gpus).map_err(|duplicate| {
            let second = match placement.get_ref() {
                PlacementText::List(list) => list.get(duplicate.ranks[1]).map(Spanned::span),
                PlacementText::Text(_) => None,
            };
            check.error(second.unwrap_or(placement.span()), duplicate.to_string())
        })
    }

    /// Checks that the product of the degrees can be the number of listed ranks, as far as this is known without a
    /// fabric.
    ///
    /// # Errors
    /// [`JobError`] at `placement` otherwise.
    pub(super) fn check_degrees(
        &self,
        check: Validator<'_>,
        parallel: &Parallel,
        placement: &Placement,
    ) -> Result<(), JobError> {
        let (Some(text), Placement::Listed(gpus), Parallel::Given { degrees, data }) =
            (&self.placement, placement, parallel)
        else {
            return Ok(());
        };
        let (ranks, listed) = (degrees.ranks(), gpus.len() as u64);
        let fits = match data {
            Some(data) => ranks * u64::from(*data) == listed,
            None => listed.is_multiple_of(ranks),
        };
        if fits {
            return Ok(());
        }
        let message = match data {
            Some(data) => {
                let degrees = super::super::Degrees { data: *data, ..*degrees };
                format!("placement: {listed} ranks, and {degrees} is {}", degrees.ranks())
            }
            None => format!("placement: {listed} ranks, and {degrees} of parallel needs a multiple of {ranks}"),
        };
        let help = Some("name a GPU for each rank, or degrees that multiply to the GPUs named".to_owned());
        Err(JobError { help, ..check.error(text.span(), message) })
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::Job;
    use super::super::read_job;
    use super::super::serving::tests::text as served;
    use super::super::tests::text as trained;
    use super::*;

    fn placement(text: &str) -> Result<Placement, String> {
        match read_job(text, "job.toml") {
            Ok(job) => Ok(job.placement().clone()),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn every_placement_form_is_read() {
        for (line, expected) in [
            ("placement = \"block\"", Placement::Block),
            ("placement = \"cyclic\"", Placement::Cyclic),
            ("placement = [0, 4, 1, 5]", Placement::Listed(vec![0, 4, 1, 5])),
            ("placement = \"0-3:2,8,1,3\"", Placement::Listed(vec![0, 2, 8, 1, 3])),
        ] {
            let auto = format!("{line}\nparallel = \"auto\"\n");
            for text in [trained(&auto), served(&auto)] {
                assert_eq!(placement(&text), Ok(expected.clone()), "{line}");
            }
        }
        assert_eq!(placement(&trained("")), Ok(Placement::Block));
        let Ok(Job::Training(job)) = read_job(&trained("placement = [0, 9, 1]\nparallel = \"auto\"\n"), "job.toml")
        else {
            panic!()
        };
        assert_eq!(job.spans.largest_gpu.to_string(), "job.toml:1:17");
    }

    #[test]
    fn invalid_placements_are_rejected_with_location() {
        for (line, location, expected) in [
            ("placement = \"blocks\"", "job.toml:1:13", "`blocks` is not known; expected \"block\""),
            ("placement = \"\"", "job.toml:1:13", "is not known"),
            ("placement = []", "job.toml:1:13", "no GPU"),
            ("placement = \"0-3,x\"", "job.toml:1:13", "`x` is not a GPU"),
            ("placement = \"0-3,2\"", "job.toml:1:13", "GPU 2 is assigned to rank 2 and rank 4"),
            ("placement = \"3-0\"", "job.toml:1:13", "contains no GPU"),
            ("placement = [0, 1, 0]", "job.toml:1:20", "GPU 0 is assigned to rank 0 and rank 2"),
            ("placement = [0, -1]", "job.toml:1:17", "-1"),
            ("placement = [0, \"1\"]", "job.toml:1:17", "u32"),
            ("placement = 3", "job.toml:1:13", "expected \"block\""),
            (
                "placement = \"0-7\"\nparallel = { tp = 8, pp = 8, dp = 1 }",
                "job.toml:1:13",
                "8 ranks, and tp 8 × pp 8 × dp 1 is 64",
            ),
            ("placement = \"0-7\"\nparallel = { tp = 3 }", "job.toml:1:13", "needs a multiple of 3"),
        ] {
            let error = placement(&trained(&format!("{line}\n"))).unwrap_err();
            assert!(error.starts_with(&format!("{location}: ")) && error.contains(expected), "{line}: {error}");
        }
    }
}
