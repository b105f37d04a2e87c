//! The page on algorithms is what the code says.

#[test]
fn the_page_is_what_the_code_says() {
    let written = include_str!("../../docs/algorithms.md");
    let printed = fabricast_reports::algorithms::markdown();
    for (number, (written, printed)) in (1..).zip(written.lines().zip(printed.lines())) {
        assert_eq!(
            written, printed,
            "line {number}; `cargo run --example algorithms > docs/algorithms.md` writes it anew"
        );
    }
    assert_eq!(written, printed);
}
