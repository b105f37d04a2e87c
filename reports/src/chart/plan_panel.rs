//! Charts of the plans of several collectives in one picture.

use super::{Arrangement, Figure, Pick, PlanChart, Strategy};

/// Plans of several collectives on one fabric, with a row of panels for each: time and bus bandwidth. A strategy has
/// the same colour in all panels.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PlanPanel {
    /// Title of the figure.
    pub title: String,
    /// Line below the title: ranks, profile, launch.
    pub subtitle: String,
    /// Plan of each collective, whose title is that of its row.
    pub plans: Vec<PlanChart>,
}

impl PlanPanel {
    /// Returns the figure of these plans.
    #[must_use]
    pub fn figure(&self) -> Figure {
        let names = self.strategy_names();
        let row_titles = match self.plans.as_slice() {
            // The title of the figure names the only collective.
            [_] => Vec::new(),
            plans => plans.iter().map(|plan| plan.title.clone()).collect(),
        };
        Figure {
            title: self.title.clone(),
            subtitle: self.subtitle.clone(),
            ribbon: None,
            panels: self.plans.iter().flat_map(|plan| reordered(plan, &names).panels()).collect(),
            arrangement: Arrangement::Pairs,
            row_titles,
        }
    }

    /// Names of the strategies of all plans, in order of decreasing number of sizes that select them.
    fn strategy_names(&self) -> Vec<&str> {
        let mut names: Vec<(&str, usize)> = Vec::new();
        for plan in &self.plans {
            for (number, strategy) in plan.strategies.iter().enumerate() {
                let picks = plan.picks.iter().filter(|pick| pick.strategy == number).count();
                match names.iter_mut().find(|(name, _)| *name == strategy.name) {
                    Some((_, sum)) => *sum += picks,
                    None => names.push((&strategy.name, picks)),
                }
            }
        }
        names.sort_by_key(|&(_, picks)| std::cmp::Reverse(picks));
        names.into_iter().map(|(name, _)| name).collect()
    }
}

/// Returns the plan with its strategies in the order of `names`. Strategies that it does not have are without points.
fn reordered(plan: &PlanChart, names: &[&str]) -> PlanChart {
    let strategy = |name: &&str| {
        let known = plan.strategies.iter().find(|strategy| strategy.name == *name);
        known.cloned().unwrap_or_else(|| Strategy { name: (*name).to_owned(), points: Vec::new() })
    };
    let pick = |pick: &Pick| {
        let name = &plan.strategies.get(pick.strategy)?.name;
        Some(Pick { strategy: names.iter().position(|known| known == name)?, ..*pick })
    };
    PlanChart {
        strategies: names.iter().map(strategy).collect(),
        picks: plan.picks.iter().filter_map(pick).collect(),
        ..plan.clone()
    }
}

#[cfg(test)]
mod tests {
    use fabricast_topologies::{Bytes, Picos};

    use super::super::{PlanPoint, Role};
    use super::*;

    /// Returns a plan that selects the last of its strategies.
    fn plan(title: &str, strategies: &[&str]) -> PlanChart {
        let points = || (10..30).map(|k| PlanPoint { bytes: Bytes(1 << k), time: Picos((5 << 20) + (4 << k)) });
        let strategy = |&name: &&str| Strategy { name: name.to_owned(), points: points().collect() };
        let last = strategies.len() - 1;
        PlanChart {
            title: title.into(),
            bus_factor: 1.0,
            strategies: strategies.iter().map(strategy).collect(),
            picks: points().map(|point| Pick { bytes: point.bytes, strategy: last }).collect(),
            ..PlanChart::default()
        }
    }

    #[test]
    fn a_strategy_has_one_colour_in_all_panels() {
        let plans = vec![plan("all_reduce", &["tree", "ring"]), plan("all_gather", &["pat", "ring"])];
        let figure = PlanPanel { title: "t".into(), subtitle: String::new(), plans }.figure();
        assert_eq!(figure.panels.len(), 4);
        assert_eq!(figure.row_titles, ["all_reduce", "all_gather"]);
        let role = |panel: usize, name: &str| {
            let line = figure.panels[panel].lines.iter().find(|line| line.name == name && !line.points.is_empty());
            line.map(|line| line.role)
        };
        assert_eq!((role(0, "ring"), role(3, "ring")), (Some(Role::Series(0)), Some(Role::Series(0))));
        assert_eq!((role(0, "tree"), role(2, "tree")), (Some(Role::Series(1)), None));
        // The selected strategy is that of the plan, whatever the order of its strategies.
        let picked = figure.panels[2].lines.iter().find(|line| line.role == Role::Pick).unwrap();
        assert_eq!(picked.points.len(), 20);
    }
}
