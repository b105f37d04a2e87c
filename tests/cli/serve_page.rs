//! The page of `serve` in Chromium: every control, by keyboard and pointer, at two widths and in both themes; two users
//! at once, invalid input, a closed tab, and a browser without scripts.
#![cfg(unix)]

use serde_json::Value;

use crate::chromium::chromium;
use crate::devtools::{Browser, Tab};
use crate::serve::Server;

/// Query of a form whose answer is computed quickly.
const SMALL: &str =
    "machine_a=hgx-h100&nodes_a=2&machine_b=hgx-h200&nodes_b=2&machine_c=none&model=llama-3-8b&global_batch=64";

/// True when the page shows the answer of its form.
const SETTLED: &str = "document.getElementById('answer').getAttribute('aria-busy') === 'false'";

/// Finds controls that are shown without a label, text with low contrast, and content wider than the page.
const FAULTS: &str = r#"(() => {
  const faults = [];
  const all = (what) => Array.from(document.querySelectorAll(what));
  const seen = (element) => element.getClientRects().length > 0 && element.getBoundingClientRect().width > 0;
  for (const control of all("input, select, button, a, summary, progress").filter(seen)) {
    const label = control.labels && control.labels.length ? control.labels[0].textContent : "";
    const name = control.getAttribute("aria-label") || label || control.textContent;
    if (!name.trim()) faults.push(`no name: ${control.outerHTML.slice(0, 120)}`);
  }
  const width = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth > width) faults.push(`${document.documentElement.scrollWidth} wide in ${width}`);
  const luminance = (colour) => {
    const parts = colour.match(/[\d.]+/g).slice(0, 3).map((part) => Number(part) / 255);
    const [r, g, b] = parts.map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if (!/rgba\(.*, 0\)/.test(colour)) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  for (const element of all("h1, h2, p, label, legend, button:enabled, select, input:not([type=range]), a, caption, th, td, footer").filter(seen)) {
    const [a, b] = [getComputedStyle(element).color, behind(element)].map(luminance);
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) faults.push(`contrast ${ratio.toFixed(2)}: ${element.outerHTML.slice(0, 100)}`);
  }
  return faults;
})()"#;

/// Returns the text of an element of the page.
fn text(tab: &Tab<'_>, id: &str) -> String {
    tab.evaluate(&format!("document.getElementById('{id}').textContent")).as_str().unwrap().to_owned()
}

/// Returns the value of a control.
fn value(tab: &Tab<'_>, id: &str) -> String {
    tab.evaluate(&format!("document.getElementById('{id}').value")).as_str().unwrap().to_owned()
}

/// Names of the elements that a selector finds on the page and that are shown.
fn shown(tab: &Tab<'_>, selector: &str) -> Vec<String> {
    let names = tab.evaluate(&format!(
        "Array.from(document.querySelectorAll('{selector}')).filter((one) => one.getClientRects().length > 0) \
         .map((one) => one.id || one.dataset.for)"
    ));
    names.as_array().unwrap().iter().map(|name| name.as_str().unwrap().to_owned()).collect()
}

/// Asserts that nothing was loaded from elsewhere, refused by the policy, or reported on the console.
fn assert_quiet(tab: &Tab<'_>, server: &Server) {
    for request in tab.events("Network.requestWillBeSent") {
        let address = request["request"]["url"].as_str().unwrap();
        assert!(address.starts_with(&format!("{}/", server.address)) || address == "data:,", "{address}");
    }
    for method in ["Runtime.exceptionThrown", "Runtime.consoleAPICalled"] {
        assert_eq!(tab.events(method), Vec::<Value>::new());
    }
    // The browser itself reports responses with an error status, as of invalid forms.
    let entries = tab.events("Log.entryAdded").into_iter().filter(|event| event["entry"]["source"] != "network");
    assert_eq!(entries.collect::<Vec<_>>(), Vec::<Value>::new());
}

#[test]
#[ignore = "takes a minute; .ci/extra runs it"]
fn every_control_works_at_both_widths_and_in_both_themes() {
    let Some(program) = chromium() else { return };
    let (server, folder) = (Server::start(""), tempfile::tempdir().unwrap());
    let browser = Browser::start(program, folder.path());
    for width in [1280, 400] {
        let tab = browser.tab(width, 900);
        tab.open(&format!("{}/?{SMALL}", server.address));
        tab.wait_for(SETTLED);
        assert!(text(&tab, "status").contains("USD/M tokens"), "{}", text(&tab, "status"));
        for _ in ["light", "dark"] {
            assert_eq!(tab.evaluate(FAULTS), Value::Array(Vec::new()), "at {width}");
            tab.click("theme");
        }
        // Sliders by keyboard: each moves its number, and the answer and the address follow.
        let sliders = shown(&tab, ".slider");
        assert!(sliders.len() >= 11, "{sliders:?}");
        for key in &sliders {
            let before = value(&tab, key);
            tab.evaluate(&format!("document.querySelector('[data-for={key}]').focus()"));
            tab.press("ArrowRight", 39, 0);
            tab.wait_for(&format!("document.getElementById('{key}').value !== '{before}'"));
            let after = value(&tab, key);
            tab.wait_for(&format!("new URLSearchParams(location.search).get('{key}') === '{after}'"));
            tab.press("z", 90, 2);
            tab.wait_for(&format!("new URLSearchParams(location.search).get('{key}') === '{before}'"));
            assert_eq!(value(&tab, key), before, "{key}");
        }
        // Lists: the next choice is sent, and taken back.
        for key in shown(&tab, "select[name]") {
            let before = value(&tab, &key);
            tab.evaluate(&format!("document.getElementById('{key}').focus()"));
            tab.evaluate(&format!(
                "(() => {{ const list = document.getElementById('{key}'); \
                 list.selectedIndex = (list.selectedIndex + 1) % list.length; \
                 list.dispatchEvent(new Event('change', {{ bubbles: true }})); }})()"
            ));
            tab.wait_for(SETTLED);
            assert_ne!(text(&tab, "status"), "", "{key}");
            tab.click("undo");
            assert_eq!(value(&tab, &key), before, "{key}");
            tab.click("redo");
            assert_ne!(value(&tab, &key), before, "{key}");
            tab.click("undo");
            tab.wait_for(SETTLED);
        }
        tab.click("copy");
        tab.wait_for("document.getElementById('status').textContent.includes('link')");
        // Collapsed sections open by keyboard, and tables of answers can be sorted.
        tab.evaluate("document.querySelector('#answer details:not([open]) summary').focus()");
        let closed = "document.querySelectorAll('#answer details:not([open])').length";
        let before = tab.evaluate(closed);
        tab.press(" ", 32, 0);
        tab.wait_for(&format!("{closed} < {before}"));
        tab.evaluate("document.querySelector('#answer .sort').click()");
        tab.wait_for("document.querySelector('#answer [aria-sort=ascending]') !== null");
        tab.click("reset");
        tab.wait_for("new URLSearchParams(location.search).get('machine_c') === 'dgx-a100'");
        tab.wait_for(SETTLED);
        assert_quiet(&tab, &server);
        tab.close();
    }
}

#[test]
#[ignore = "takes a minute; .ci/extra runs it"]
fn invalid_input_is_an_error_at_its_field() {
    let Some(program) = chromium() else { return };
    let (server, folder) = (Server::start(""), tempfile::tempdir().unwrap());
    let browser = Browser::start(program, folder.path());
    let tab = browser.tab(1280, 900);
    tab.open(&format!("{}/?{SMALL}", server.address));
    tab.wait_for(SETTLED);
    for (key, wrong) in [("nodes_a", "0"), ("nodes_a", "99999"), ("global_batch", "1.5")] {
        tab.evaluate(&format!(
            "(() => {{ const field = document.getElementById('{key}'); field.value = '{wrong}'; \
             field.dispatchEvent(new Event('change', {{ bubbles: true }})); }})()"
        ));
        tab.wait_for(&format!("document.getElementById('{key}').getAttribute('aria-invalid') === 'true'"));
        assert!(text(&tab, &format!("error-{key}")).contains(wrong));
        assert_eq!(tab.evaluate(FAULTS), Value::Array(Vec::new()));
        tab.click("undo");
        tab.wait_for(&format!("document.getElementById('{key}').getAttribute('aria-invalid') === 'false'"));
    }
    assert_quiet(&tab, &server);
}

#[test]
#[ignore = "takes a minute; .ci/extra runs it"]
fn two_users_get_their_own_answers_and_a_closed_tab_harms_nobody() {
    let Some(program) = chromium() else { return };
    let (server, folder) = (Server::start(""), tempfile::tempdir().unwrap());
    let browser = Browser::start(program, folder.path());
    let tabs = [browser.tab(1280, 900), browser.tab(1280, 900)];
    let queries = [SMALL.to_owned(), SMALL.replace("hgx-h200", "mi300x").replace("&model", "&price_b=own&model")];
    for (tab, query) in tabs.iter().zip(&queries) {
        tab.call("Page.navigate", &serde_json::json!({ "url": format!("{}/?{query}", server.address) }));
    }
    let leaving = browser.tab(1280, 900);
    leaving.open(&format!("{}/?nodes_a=512&nodes_b=512&model=deepseek-v3", server.address));
    leaving.close();
    for (tab, machine) in tabs.iter().zip(["B: 2 x hgx-h200", "B: 2 x mi300x"]) {
        tab.wait_for("location.protocol === 'http:' && document.readyState === 'complete'");
        tab.wait_for(SETTLED);
        assert!(text(tab, "answer").contains(machine), "{}", text(tab, "answer"));
        assert_quiet(tab, &server);
    }
    assert!(!text(&tabs[0], "answer").contains("mi300x"));
}

#[test]
#[ignore = "takes a minute; .ci/extra runs it"]
fn form_works_without_scripts() {
    let Some(program) = chromium() else { return };
    let (server, folder) = (Server::start(""), tempfile::tempdir().unwrap());
    let browser = Browser::start(program, folder.path());
    let tab = browser.tab(400, 900);
    tab.call("Emulation.setScriptExecutionDisabled", &serde_json::json!({ "value": true }));
    tab.open(&format!("{}/?{SMALL}", server.address));
    assert!(text(&tab, "answer").contains("USD/M tokens"), "{}", text(&tab, "status"));
    assert_eq!(shown(&tab, ".slider"), Vec::<String>::new());
    assert!(shown(&tab, "input[name]").contains(&"nodes_a".to_owned()));
    tab.click("send");
    tab.wait_for("document.readyState === 'complete' && new URLSearchParams(location.search).has('usd_per_kwh')");
    assert!(text(&tab, "answer").contains("USD/M tokens"), "{}", text(&tab, "status"));
}

#[test]
#[ignore = "takes a minute; .ci/extra runs it"]
fn refused_link_and_stopped_study_are_sent_by_the_button() {
    let Some(program) = chromium() else { return };
    // With a token, all addresses are under a random path.
    let (server, folder) = (Server::start("--token"), tempfile::tempdir().unwrap());
    let browser = Browser::start(program, folder.path());
    let tab = browser.tab(1280, 900);
    tab.open(&server.link());
    tab.wait_for(SETTLED);
    assert_eq!(shown(&tab, "#send"), Vec::<String>::new());
    tab.open(&format!("{}/?nodes_a=0", server.address));
    tab.wait_for("document.documentElement.classList.contains('scripted')");
    assert!(text(&tab, "status").contains("0 is out of range"), "{}", text(&tab, "status"));
    assert_eq!(text(&tab, "answer").trim(), "");
    assert_eq!(shown(&tab, "#take"), Vec::<String>::new());
    tab.click("send");
    tab.wait_for(SETTLED);
    assert_eq!(shown(&tab, "#take, #send"), ["take"]);
    tab.open(&format!("{}/?nodes_a=512&nodes_b=512&model=deepseek-v3", server.address));
    tab.wait_for("document.getElementById('stop').getClientRects().length > 0");
    tab.click("stop");
    assert_eq!((text(&tab, "status"), shown(&tab, "#send")), ("Stopped.".to_owned(), vec!["send".to_owned()]));
    assert_quiet(&tab, &server);
}
