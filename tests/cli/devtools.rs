//! Minimal client of Chromium's DevTools protocol over its debugging pipe: messages are JSON, each ended by a zero byte,
//! on file descriptors 3 and 4 (Chromium's flag `--remote-debugging-pipe`).

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// Running browser, which is killed when it is dropped.
pub struct Browser {
    child: Child,
    input: RefCell<File>,
    output: RefCell<BufReader<File>>,
    last_id: Cell<u64>,
    /// Events received so far.
    events: RefCell<Vec<Value>>,
}

/// Tab of a browser.
pub struct Tab<'a> {
    browser: &'a Browser,
    target: String,
    session: String,
}

impl Browser {
    /// Starts a browser whose files are in `folder`.
    pub fn start(program: &str, folder: &Path) -> Self {
        let pipes = ["input", "output"].map(|name| folder.join(name));
        assert!(Command::new("mkfifo").args(&pipes).status().unwrap().success());
        let mut command = Command::new("sh");
        command.args(["-c", "exec \"$0\" \"$@\" 3< input 4> output", program]);
        command.args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]);
        command.args(["--disable-extensions", "--disable-background-networking", "--remote-debugging-pipe"]);
        command.arg(format!("--user-data-dir={}", folder.join("profile").display()));
        let child = command.current_dir(folder).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let input = File::options().write(true).open(&pipes[0]).unwrap();
        let output = BufReader::new(File::open(&pipes[1]).unwrap());
        Self { child, input: input.into(), output: output.into(), last_id: Cell::new(0), events: RefCell::default() }
    }

    /// Calls a method and returns its result.
    fn call(&self, session: Option<&str>, method: &str, parameters: &Value) -> Value {
        self.last_id.set(self.last_id.get() + 1);
        let mut message = json!({ "id": self.last_id.get(), "method": method, "params": parameters });
        if let Some(session) = session {
            message["sessionId"] = session.into();
        }
        let mut input = self.input.borrow_mut();
        input.write_all(format!("{message}\0").as_bytes()).unwrap();
        loop {
            let mut bytes = Vec::new();
            self.output.borrow_mut().read_until(0, &mut bytes).unwrap();
            assert_eq!(bytes.pop(), Some(0), "the browser ended");
            let received: Value = serde_json::from_slice(&bytes).unwrap();
            if received["id"] == message["id"] {
                assert!(received["error"].is_null(), "{method}: {received}");
                return received["result"].clone();
            }
            self.events.borrow_mut().push(received);
        }
    }

    /// Opens an empty tab of this size, in pixels.
    pub fn tab(&self, width: u32, height: u32) -> Tab<'_> {
        let target = self.call(None, "Target.createTarget", &json!({ "url": "about:blank" }))["targetId"].clone();
        let session = self.call(None, "Target.attachToTarget", &json!({ "targetId": target, "flatten": true }));
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let tab = Tab { browser: self, target: text(&target), session: text(&session["sessionId"]) };
        for domain in ["Page", "Runtime", "Log", "Network"] {
            tab.call(&format!("{domain}.enable"), &json!({}));
        }
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        tab.call("Emulation.setDeviceMetricsOverride", &size);
        tab
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Tab<'_> {
    /// Calls a method of the protocol.
    pub fn call(&self, method: &str, parameters: &Value) -> Value {
        self.browser.call(Some(&self.session), method, parameters)
    }

    /// Evaluates an expression, which may be a promise, and returns its value.
    #[track_caller]
    pub fn evaluate(&self, expression: &str) -> Value {
        let parameters = json!({ "expression": expression, "awaitPromise": true, "returnByValue": true });
        let result = self.call("Runtime.evaluate", &parameters);
        assert!(result["exceptionDetails"].is_null(), "{expression}: {result}");
        result["result"]["value"].clone()
    }

    /// Waits until an expression is true.
    #[track_caller]
    pub fn wait_for(&self, expression: &str) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while self.evaluate(&format!("Boolean({expression})")) != Value::Bool(true) {
            let body = || self.evaluate("document.body.innerText.slice(0, 3000)");
            assert!(Instant::now() < deadline, "{expression}: {}", body());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Opens an address, and waits until the page is loaded.
    pub fn open(&self, address: &str) {
        self.call("Page.navigate", &json!({ "url": address }));
        // Scripts may change the address at once.
        self.wait_for("location.protocol === 'http:' && document.readyState === 'complete'");
    }

    /// Presses a key with modifiers: 0 for none, 2 for Ctrl, 8 for Shift.
    pub fn press(&self, key: &str, code: u32, modifiers: u32) {
        for kind in ["rawKeyDown", "keyUp"] {
            let event =
                json!({ "type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code, "modifiers": modifiers });
            self.call("Input.dispatchKeyEvent", &event);
        }
    }

    /// Clicks the middle of the element with this id.
    pub fn click(&self, id: &str) {
        let id = json!(id);
        let place = self.evaluate(&format!(
            "(() => {{ const element = document.getElementById({id}); element.scrollIntoView({{ block: 'center' }}); \
             const box = element.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]; }})()"
        ));
        for kind in ["mousePressed", "mouseReleased"] {
            let event = json!({ "type": kind, "x": place[0], "y": place[1], "button": "left", "clickCount": 1 });
            self.call("Input.dispatchMouseEvent", &event);
        }
    }

    /// Returns the events of the tab with a method, such as `Network.requestWillBeSent`.
    pub fn events(&self, method: &str) -> Vec<Value> {
        let events = self.browser.events.borrow();
        let is_meant = |event: &&Value| event["method"] == method && event["sessionId"] == self.session.as_str();
        events.iter().filter(is_meant).map(|event| event["params"].clone()).collect()
    }

    /// Closes the tab as a user does.
    pub fn close(self) {
        self.browser.call(None, "Target.closeTarget", &json!({ "targetId": self.target }));
    }
}
