//! Tests of costs: listed prices with their numbers of units, power bands, and notes on costs that are not counted.

use super::*;

/// A power band widens the bands of cost and energy. The middle of the band gives the same figures as a single number.
#[test]
fn power_bands_widen_cost_and_energy() {
    let run_study =
        |power: &str| CompletedStudy::new(&PAIR.replacen("power_kw = 4", &format!("power_kw = {power}"), 1));
    let (band, middle) = (run_study("{ low = 3, high = 5 }"), run_study("4"));
    assert_eq!(band.cases.study(), middle.cases.study());
    let (wide, narrow) = (band.answer(), middle.answer());
    let power = &wide.candidates[0];
    assert_eq!((power.power_kw, power.power_kw_low, power.power_kw_high), (Some(4.0), Some(3.0), Some(5.0)));
    assert_eq!((narrow.candidates[0].power_kw_low, narrow.results[0].kwh_per_million_tokens_low), (None, None));
    assert!(wide.assumptions.price_bands.ends_with("; power varies with the price"));
    for (row, plain) in wide.results.iter().zip(&narrow.results).filter(|(row, _)| row.candidate == "two") {
        let per_kwh = band.study.assumptions.per_kwh;
        let near = |a: Option<f64>, b: f64| (a.unwrap() / b - 1.0).abs() < 1e-9;
        assert!(near(row.cost_per_hour, plain.cost_per_hour.unwrap()));
        assert!(near(row.cost_per_hour_low, plain.cost_per_hour_low.unwrap() - per_kwh));
        assert!(near(row.cost_per_hour_high, plain.cost_per_hour_high.unwrap() + per_kwh));
        let energy = plain.kwh_per_million_tokens.unwrap();
        assert!(near(row.kwh_per_million_tokens, energy));
        assert!(near(row.kwh_per_million_tokens_low, energy * 0.75));
        assert!(near(row.kwh_per_million_tokens_high, energy * 1.25));
    }
}

/// If the power is not stated, energy counts as zero; a budget does not limit rented machines. The answer notes both.
#[test]
fn uncounted_costs_are_noted() {
    let notes = |text: &str| CompletedStudy::new(text).answer().notes;
    assert_eq!(notes(PAIR), Vec::<String>::new());
    let unpowered = notes(&PAIR.replacen("power_kw = 4\n", "", 1));
    assert!(unpowered.len() == 1 && unpowered[0].starts_with("energy is not counted"), "{unpowered:?}");
    assert!(unpowered[0].ends_with("look cheaper: two"), "{unpowered:?}");
    let rented = PAIR.replacen("price_usd", "price_per_hour_usd", 1);
    assert_eq!(notes(&rented), Vec::<String>::new());
    let rented = notes(&format!("{rented}[constraints]\nbudget_usd = 2e5\n"));
    assert!(rented.len() == 1 && rented[0].ends_with("cost_per_hour_usd would: two"), "{rented:?}");
    // Rented machines are at another site: they violate no limits on power and racks unless they state these values.
    let rented = PAIR.replacen("price_usd", "price_per_hour_usd", 1).replacen("power_kw = 4\n", "", 1);
    let limited = CompletedStudy::new(&format!("{rented}[constraints]\npower_kw = 5\n")).answer();
    assert!(limited.ranking.iter().all(|row| row.meets_constraints), "{:?}", limited.ranking);
    assert!(limited.notes[0].ends_with("rented candidates that state none: two"), "{:?}", limited.notes);
}

/// The number of units of a listed price follows from its unit and the machine. `price_count` overrides it. If neither
/// determines it, it is an error.
#[test]
fn listed_prices_count_hosts_gpus_and_racks() {
    let list = "[[price]]\nitem = \"box\"\nlow = 10\nhigh = 20\ncurrency = \"USD\"\nunit = \"UNIT\"\ndate = \"2026\"\nsource = \"s\"\n";
    let study = |unit: &str, lines: &str| {
        let text = format!("prices = \"l\"\n[[candidate]]\nname = \"a\"\nprice = \"box\"\n{lines}\n{JOB}");
        let list = list.replace("\"UNIT\"", unit);
        let result =
            read_study_with(&text, "s.toml", &|name| Ok((name.to_owned(), list.clone())), &|name| Err(name.to_owned()));
        result.map(|study| {
            let fabric = load(&study.candidates[0].fabric).unwrap();
            (study, [fabric])
        })
    };
    let terms = Terms::new(Assumptions::default());
    let hourly = |unit: &str, lines: &str| {
        let (study, fabrics) = study(unit, lines).unwrap();
        check(&study, &fabrics).unwrap();
        study.candidates[0].hourly(MachineSize::new(&fabrics[0]), &terms).unwrap().low
    };
    let (four, racks) =
        ("fabric = \"hgx-h100\"\nnodes = 4", "fabric = \"gb200-nvl72\"\nnodes = 36\nnetwork = { kind = \"rail\" }");
    let lifetime_hours = terms.assumptions.hours();
    for (unit, lines, expected) in [
        ("\"node_hour\"", four, 40.0),
        ("\"gpu_hour\"", four, 320.0),
        ("\"node\"", four, 40.0 / lifetime_hours),
        ("\"gpu\"", four, 320.0 / lifetime_hours),
        ("\"rack\"\nhosts = 3", four, 20.0 / lifetime_hours),
        ("\"rack\"\nhosts = 18", racks, 20.0 / lifetime_hours),
        ("\"rack\"", "fabric = \"hgx-h100\"\nnodes = 4\nracks = 3", 30.0 / lifetime_hours),
        ("\"hour\"", "fabric = \"hgx-h100\"", 10.0),
        ("\"hour\"", "fabric = \"hgx-h100\"\nnodes = 4\nprice_count = 5", 50.0),
        ("\"gpu_hour\"", "fabric = \"hgx-h100\"\nnodes = 4\nprice_count = 5", 50.0),
    ] {
        let cost = hourly(unit, lines);
        assert!((cost / expected - 1.0).abs() < 1e-12, "{unit} {lines}: {cost}");
    }
    for unit in ["\"each\"", "\"hour\"", "\"rack\""] {
        let (study, fabrics) = study(unit, four).unwrap();
        let error = check(&study, &fabrics).unwrap_err().to_string();
        assert!(
            error.starts_with("s.toml:4:9: price: the unit of `box` does not determine how many 4 hosts"),
            "{error}"
        );
    }
    for unit in ["\"rack\"\nhosts = 0", "\"node\"\nhosts = 2"] {
        let error = study(unit, four).unwrap_err().to_string();
        assert!(error.starts_with("l:1:1: `box`: hosts: "), "{error}");
    }
}
