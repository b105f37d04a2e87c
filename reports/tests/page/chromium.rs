//! Tests of pages in Chromium: no resource is loaded, no error occurs, and every control works.
//!
//! A script that is added to the page (`self_test.js`) operates all controls and collects errors. The page is loaded in
//! a frame of the tested width and reports to the page around it, whose DOM Chromium prints. Without Chromium the tests
//! are skipped with a message, except if `REQUIRE_CHROMIUM` or `CI` is set. (The command line's tests include this
//! file, too.)

use std::path::Path;
use std::process::Command;

use serde::Deserialize;

const NAMES: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "chrome"];

/// Script at the start of the page that records all errors.
const EARLY: &str = "<script>const early = []; addEventListener('error', (e) => early.push(`error: ${e.message}`)); \
    addEventListener('unhandledrejection', (e) => early.push(`rejected: ${e.reason}`)); \
    addEventListener('securitypolicyviolation', (e) => early.push(`refused: ${e.blockedURI}`)); \
    for (const kind of ['error', 'warn']) console[kind] = (...words) => early.push(`${kind}: ${words.join(' ')}`);</script>";

#[derive(Debug, Deserialize)]
struct PageReport {
    width: u32,
    faults: Vec<String>,
    counts: Counts,
}

/// Numbers of elements on a page, and of controls that were operated.
#[derive(Debug, Deserialize)]
pub struct Counts {
    pub tables: u32,
    pub plots: u32,
    pub points: u32,
    pub switched: u32,
    pub choices: u32,
}

/// Returns the name of the browser; `None` if there is none, which tests report.
pub fn chromium() -> Option<&'static str> {
    let runs =
        |name: &&'static str| Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success());
    let browser = NAMES.into_iter().find(|name| runs(name));
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    if browser.is_none() {
        assert!(!is_set("REQUIRE_CHROMIUM") && !is_set("CI"), "no Chromium: install Debian's package `chromium`");
        eprintln!("skipped: there is no Chromium");
    }
    browser
}

/// Opens a page in a frame with a width of `width` pixels, and returns its report.
fn open(browser: &str, html: &str, width: u32) -> PageReport {
    let folder = tempfile::tempdir().expect("a folder");
    let script = format!("<script>{}</script></body>", include_str!("self_test.js"));
    let tested = html.replacen("<head>", &format!("<head>{EARLY}"), 1).replacen("</body>", &script, 1);
    std::fs::write(folder.path().join("page.html"), tested).expect("written");
    let frame = format!(
        "<!DOCTYPE html><body><script>onmessage = (event) => {{ const out = document.createElement('pre'); \
         out.id = 'report'; out.textContent = event.data; document.body.append(out); }};</script>\
         <iframe src=\"page.html\" style=\"width:{width}px;height:900px;border:0\"></iframe></body>"
    );
    let frame_file = folder.path().join("frame.html");
    std::fs::write(&frame_file, frame).expect("written");
    let dumped = dump(browser, folder.path(), &frame_file);
    let report = dumped.split_once("<pre id=\"report\">").and_then(|(_, rest)| rest.split_once("</pre>"));
    let (report, _) = report.unwrap_or_else(|| panic!("the page reported nothing:\n{dumped:.2000}"));
    let text = report.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn dump(browser: &str, folder: &Path, page: &Path) -> String {
    let output = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1400,1000"])
        .args(["--no-first-run", "--disable-extensions", "--disable-background-networking", "--enable-logging=stderr"])
        .arg(format!("--user-data-dir={}", folder.join("profile").display()))
        .args(["--virtual-time-budget=60000", "--dump-dom"])
        .arg(format!("file://{}", page.display()))
        .output()
        .expect("Chromium runs");
    let stderr = String::from_utf8_lossy(&output.stderr);
    let console_lines: Vec<&str> = stderr.lines().filter(|line| line.contains(":CONSOLE")).collect();
    assert!(console_lines.is_empty(), "on the console: {console_lines:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Asserts that a page works at both widths, and returns its counts; `None` if there is no browser.
pub fn works(html: &str) -> Option<Counts> {
    let browser = chromium()?;
    let mut counts = None;
    for width in [1280, 400] {
        let report = open(browser, html, width);
        assert_eq!(report.width, width);
        assert!(report.faults.is_empty(), "at {width}: {:#?}", report.faults);
        counts = Some(report.counts);
    }
    counts
}
