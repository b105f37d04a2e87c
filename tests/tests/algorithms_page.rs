//! The page docs/algorithms.md equals the page generated from the code.

#[test]
fn algorithms_page_matches_the_code() {
    let written = include_str!("../../docs/algorithms.md");
    let printed = fabricast_reports::algorithms::markdown();
    for (number, (written, printed)) in (1..).zip(written.lines().zip(printed.lines())) {
        assert_eq!(
            written, printed,
            "line {number}; `cargo run --example algorithms > docs/algorithms.md` writes it again"
        );
    }
    assert_eq!(written, printed);
}
