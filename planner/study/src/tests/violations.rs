//! Tests of the reasons in an answer for candidates that do not fit or violate constraints.

use super::*;

/// Memory shortfalls are distinguished: either the weights alone do not fit, or only the activations of a large step do
/// not fit.
#[test]
fn memory_shortfalls_name_their_cause() {
    let violations = |lines: &str| {
        let answer = CompletedStudy::new(&format!(
            "[[candidate]]\nname = \"a\"\nfabric = \"hgx-h100\"\n\
             [[job]]\nname = \"j\"\nkind = \"inference\"\nprompt_tokens = 100\noutput_tokens = 100\nconcurrency = 8\n\
             parallel = {{ tp = 1, pp = 1, dp = 8 }}\n{lines}\n"
        ))
        .answer();
        answer.ranking[0].violations.join("; ")
    };
    let model = |layers: u32| {
        format!("model = {{ layers = {layers}, hidden = 8192, heads = 64, kv_heads = 8, ffn = 28672, vocab = 32000 }}")
    };
    let large = violations(&model(300));
    assert!(large.ends_with("GB of memory (not even the weights fit)"), "{large}");
    let large_batch = violations(&format!("max_batched_tokens = 1000000\n{}", model(8)));
    assert!(
        large_batch
            .ends_with("GB of memory (weights fit, but not the buffers for max_batched_tokens: a smaller value would)"),
        "{large_batch}"
    );
}

/// A setting under which no candidate meets the constraints counts as a changed order.
#[test]
fn settings_without_valid_candidates_change_the_order() {
    let answer = CompletedStudy::new(&format!(
        "{}[constraints]\ncost_per_hour_usd = 20\n[sensitivity]\ngpu_price = [1, 1000]\n",
        PAIR.replace("price_usd = { low = 90000, high = 110000 }", "price_usd = 90000")
    ))
    .answer();
    let changed: Vec<bool> = answer.sensitivities.iter().map(|row| row.changed).collect();
    assert!(answer.sensitivities[1].ranking.iter().all(|row| !row.meets_constraints));
    assert_eq!(changed, [false, true]);
}
