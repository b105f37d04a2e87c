//! JUnit XML of test results, as continuous-integration systems read it (`testsuites`, `testsuite`, `testcase`,
//! `failure`; the format of Apache Ant's `junit` task).

use crate::markup::Markup;

/// Test with its result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TestCase {
    /// Name of the test.
    pub name: String,
    /// Group of the test.
    pub class: String,
    /// Description of each failure; empty if the test passed.
    pub failures: Vec<String>,
}

/// Writes the results of a suite of tests.
#[must_use]
pub fn junit(suite: &str, cases: &[TestCase]) -> String {
    let count = cases.len().to_string();
    let failed = cases.iter().filter(|case| !case.failures.is_empty()).count().to_string();
    let totals = [("name", suite), ("tests", count.as_str()), ("failures", failed.as_str())];
    let mut xml = Markup::default();
    xml.raw("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    xml.open("testsuites", &totals);
    xml.open("testsuite", &totals);
    for case in cases {
        let attributes = [("classname", case.class.as_str()), ("name", case.name.as_str())];
        match case.failures.first() {
            None => xml.empty("testcase", &attributes),
            Some(first) => {
                xml.open("testcase", &attributes);
                xml.text("failure", &[("message", first.as_str())], &case.failures.join("; "));
                xml.close();
            }
        }
    }
    xml.close();
    xml.close();
    xml.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_well_formed_and_counted() {
        let case = |name: &str, failures: &[&str]| TestCase {
            name: name.to_owned(),
            class: "g<1>".to_owned(),
            failures: failures.iter().map(|&text| text.to_owned()).collect(),
        };
        let text = junit("gate", &[case("a \"b\"", &[]), case("c\u{1b}[31m", &["1 < 2", "3 & 4"])]);
        let document = roxmltree::Document::parse(&text).unwrap();
        let suite = document.descendants().find(|node| node.has_tag_name("testsuite")).unwrap();
        assert_eq!((suite.attribute("tests"), suite.attribute("failures")), (Some("2"), Some("1")));
        let cases: Vec<_> = document.descendants().filter(|node| node.has_tag_name("testcase")).collect();
        assert_eq!((cases[0].attribute("name"), cases[0].attribute("classname")), (Some("a \"b\""), Some("g<1>")));
        let failure = cases[1].descendants().find(|node| node.has_tag_name("failure")).unwrap();
        assert_eq!((failure.attribute("message"), failure.text()), (Some("1 < 2"), Some("1 < 2; 3 & 4")));
    }
}
