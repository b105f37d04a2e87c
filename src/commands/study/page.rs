//! A study as a page, with a picture of the fabric that is put first.

use fabricast_planner::study::answer::Answer;
use fabricast_reports::page::{self, Picture};
use fabricast_reports::topology::{Options, counts};
use fabricast_topologies::Fabric;

/// The page; fabrics stand in the order of the candidates.
pub fn html(answer: &Answer, fabrics: &[Fabric]) -> String {
    let first = answer.ranking.first().and_then(|first| {
        let number = answer.candidates.iter().position(|one| one.name == first.candidate)?;
        fabrics.get(number).map(|fabric| (&first.candidate, fabric))
    });
    let picture = |(name, fabric): (&String, &Fabric)| {
        Picture::of_fabric(format!("{name}: {}", counts(fabric)), fabric, &Options::default())
    };
    page::of_study(answer, &first.map(picture).into_iter().collect::<Vec<_>>()).html()
}
