//! Tests of links, invalid values, and studies of forms.

use proptest::prelude::*;

use super::*;

/// Any value of a field.
fn any_value(field: Field) -> BoxedStrategy<String> {
    match field.values() {
        Values::List { choices, .. } => proptest::sample::select(choices).prop_map(|choice| choice.value).boxed(),
        Values::Number(range) => {
            let number = match range.kind {
                NumberKind::Whole => (range.min as u64..=range.max as u64).prop_map(|number| number as f64).boxed(),
                NumberKind::Real => (range.min..=range.max).boxed(),
            };
            let position = proptest::sample::select(range.positions());
            prop_oneof![number, position].prop_map(|number| number.to_string()).boxed()
        }
    }
}

/// Any valid form.
pub fn any_form() -> impl Strategy<Value = Form> {
    let fields: Vec<Field> = Field::all().collect();
    let values: Vec<BoxedStrategy<String>> = fields.iter().map(|field| any_value(*field)).collect();
    (values, 0..20_u32).prop_map(move |(mut values, unpriced)| {
        // Machines with and without a price are refused, which is tested below.
        for (field, value) in fields.iter().zip(&mut values) {
            if let Field::Machine(_, MachineField::Price) = field {
                match (unpriced, value.as_str()) {
                    (0, _) => *value = NONE.to_owned(),
                    (_, NONE) => *value = OWN_PRICE.to_owned(),
                    _ => {}
                }
            }
        }
        Form::read(fields.iter().map(|field| field.key()).zip(values)).expect("a valid form")
    })
}

proptest! {
    #[test]
    fn link_holds_the_form(form in any_form()) {
        let query = form.query();
        prop_assert!(query.is_ascii() && query.len() < 2000, "{query}");
        let read = Form::from_query(&query).expect("its own link");
        prop_assert_eq!(&read, &form);
        prop_assert_eq!(read.query(), query);
    }

    #[test]
    fn study_reader_accepts_any_form_or_names_the_field(form in any_form()) {
        let study = StudyText::new(&form);
        match fabricast_study::read_study(&study.toml, STUDY_NAME) {
            Ok(read) => {
                let machines = Slot::ALL.into_iter().filter(|slot| form.has_machine(*slot)).count();
                prop_assert_eq!((read.candidates.len(), read.jobs.len()), (machines, 1));
                let priced = read.candidates.iter().filter(|candidate| candidate.price.is_some()).count();
                prop_assert!(priced == 0 || priced == machines);
            }
            // Some combinations are invalid, such as training in 4 bits.
            Err(error) => {
                prop_assert!(study.field(error.location.line).is_some(), "{}\n{}", error, study.toml);
            }
        }
    }

    #[test]
    fn every_key_of_a_study_names_its_field(form in any_form()) {
        let study = StudyText::new(&form);
        for (number, line) in (1..).zip(study.toml.lines()) {
            prop_assert_eq!(study.field(number).is_some(), line.contains(" = ") || line.starts_with("[["), "{}: {}", number, line);
        }
        prop_assert_eq!(study.field(0), None);
        prop_assert_eq!(study.field(study.toml.lines().count() as u32 + 1), None);
    }

    #[test]
    fn hostile_links_are_refused_or_read(query in "(([a-z_&=%+;. 0-9-]|\\PC){0,60}|(work|nodes_a|price_b|years)=(\\PC){0,40})") {
        match Form::from_query(&query) {
            Ok(form) => prop_assert_eq!(Form::from_query(&form.query()), Ok(form)),
            Err(error) => {
                let message = error.to_string();
                prop_assert!(message.len() < 600 && !message.contains(char::is_control), "{message:?}");
            }
        }
    }
}

#[test]
fn absent_fields_have_their_default() {
    assert_eq!(Form::from_query(""), Ok(Form::default()));
    assert_eq!(Form::from_query(&Form::default().query()), Ok(Form::default()));
}

#[test]
fn fields_that_do_not_apply_leave_no_trace() {
    let query =
        "work=inference&global_batch=8&zero=3&machine_b=none&nodes_b=7&nodes_a=1&nic_a=400&usd_per_gpu_hour_a=9";
    let form = Form::from_query(query).unwrap();
    assert_eq!(form, Form::from_query("work=inference&machine_b=none&nodes_a=1").unwrap());
    for absent in ["global_batch", "zero", "nodes_b", "nic_a", "usd_per_gpu_hour_a"] {
        assert!(!form.query().contains(absent), "{absent}");
    }
}

#[test]
fn invalid_values_are_named() {
    for (query, field, message) in [
        ("modell=x", None, "`modell` is no field of this form"),
        ("work=training&work=inference", Some("work"), "Workload is given twice"),
        (
            "model=llama-3-70",
            Some("model"),
            "Model: `llama-3-70` is not in the list: choose one of the list; did you mean",
        ),
        ("machine_a=none", Some("machine_a"), "Machine of machine A: `none` is not in the list"),
        (
            "machine_b=../../etc/passwd",
            Some("machine_b"),
            "Machine of machine B: `../../etc/passwd` is not in the list",
        ),
        ("nodes_a=four", Some("nodes_a"), "Hosts of machine A: `four` is not a whole number: give one from 1 to 512"),
        ("nodes_a=1.5", Some("nodes_a"), "Hosts of machine A: `1.5` is not a whole number"),
        ("nodes_a=", Some("nodes_a"), "`` is not a whole number"),
        ("nodes_a=0", Some("nodes_a"), "Hosts of machine A: 0 is out of range: give a number from 1 to 512"),
        ("nodes_c=513", Some("nodes_c"), "513 is out of range"),
        ("years=NaN", Some("years"), "Depreciation, years: `NaN` is not a number"),
        ("years=inf", Some("years"), "Depreciation, years: inf is out of range"),
        ("years=-4", Some("years"), "-4 is out of range"),
        ("years=%1b[31m", Some("years"), "`\\u{1b}[31m` is not a number"),
        ("price_b=none", Some("price_b"), "Price of machine B is none, and other machines have a price"),
    ] {
        let error = Form::from_query(query).expect_err(query);
        assert!(error.to_string().contains(message), "{query}: {error}");
        assert_eq!(error.field().map(Field::key).as_deref(), field, "{query}");
    }
    let long = Form::from_query(&format!("model={}", "x".repeat(5000))).unwrap_err().to_string();
    assert!(long.len() < 300, "{long}");
}

#[test]
fn names_of_fields_are_distinct_and_found() {
    let keys: Vec<String> = Field::all().map(Field::key).collect();
    for (number, key) in keys.iter().enumerate() {
        assert!(!keys[..number].contains(key), "{key}");
        assert_eq!(Field::find(key).map(Field::key).as_ref(), Some(key));
    }
}

#[test]
fn defaults_and_slider_positions_are_valid() {
    for field in Field::all() {
        match field.values() {
            Values::List { choices, default } => {
                assert!(choices.iter().any(|choice| choice.value == default), "{}: {default}", field.key());
            }
            Values::Number(range) => {
                let positions = range.positions();
                assert!(positions.is_sorted_by(|a, b| a < b), "{}: {positions:?}", field.key());
                assert_eq!((positions.first(), positions.last()), (Some(&range.min), Some(&range.max)));
                for position in positions {
                    assert!(parse(field, &position.to_string()).is_ok(), "{}: {position}", field.key());
                }
                assert!(parse(field, &range.default.to_string()).is_ok(), "{}", field.key());
            }
        }
    }
}

#[test]
fn lists_are_those_of_the_commands() {
    let values = |field: Field| match field.values() {
        Values::List { choices, .. } => choices.iter().map(|choice| choice.value.as_str()).collect::<Vec<_>>(),
        Values::Number(_) => Vec::new(),
    };
    let presets: Vec<&str> = fabricast_topologies::preset::names().collect();
    assert_eq!(values(Field::Machine(Slot::A, MachineField::Preset)), presets);
    let models: Vec<String> =
        fabricast_workload::job::named_models().unwrap().into_iter().map(|named| named.name).collect();
    assert_eq!(values(Field::Model), models);
    let Values::List { choices, .. } = Field::Machine(Slot::A, MachineField::Preset).values() else { panic!() };
    let label = |name: &str| choices.iter().find(|choice| choice.value == name).map(|choice| choice.label.as_str());
    assert_eq!(label("gb200-nvl72"), Some("gb200-nvl72 (18 hosts of 4 GPUs)"));
    assert_eq!(label("hgx-h100"), Some("hgx-h100 (8 GPUs)"));
    let prices = values(Field::Machine(Slot::A, MachineField::Price));
    assert!(!prices.iter().any(|price| price.contains("non-GPU") || price.contains("MSRP")), "{prices:?}");
    assert!(prices.len() > 10, "{prices:?}");
    for price in &prices[2..] {
        assert!(fabricast_study::shipped().iter().any(|entry| entry.item == *price), "{price}");
    }
}

#[test]
fn prices_of_other_gpus_are_noted() {
    let note = |machine: &str, price: &str| {
        let form = Form::from_query(&format!("machine_a={machine}&price_a={price}")).unwrap();
        form.price_note(Slot::A)
    };
    for (machine, price) in [
        ("hgx-h100", "H100+SXM+specialty"),
        ("hgx-h100", "own"),
        ("dgx-a100", "A100-80+specialty"),
        ("hgx-h200", "H200+long+tail"),
        ("gb200-nvl72", "GB200+NVL72+rack"),
        ("h100-pcie", "H100+tier-2+cloud"),
    ] {
        assert_eq!(note(machine, price), None, "{machine}: {price}");
    }
    for (machine, price) in [
        ("hgx-b200", "H100+SXM+specialty"),
        ("hgx-h100", "H200+specialty"),
        ("hgx-b200", "GB200+NVL72+rack"),
        ("h100-pcie", "H100+SXM+specialty"),
        ("mi300x", "A100-80+specialty"),
    ] {
        assert!(note(machine, price).is_some(), "{machine}: {price}");
    }
    let expected = "Machine A has B200 SXM, but is priced as H100 SXM specialty.";
    assert_eq!(note("hgx-b200", "H100+SXM+specialty").as_deref(), Some(expected));
}
