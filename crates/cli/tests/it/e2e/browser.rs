//! Debian's chromium without a window, driven over its debugging protocol.

use std::cell::RefCell;
use std::io::{BufRead as _, BufReader};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use pulselet_testing::requires;
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};
use tempfile::TempDir;
use tungstenite::stream::MaybeTlsStream;
use tungstenite::{Message, WebSocket};

use super::harness::{PATIENCE, eventually};

const PROGRAM: &str = "/usr/bin/chromium";

/// Whether this machine has it; if not, the test is reported as skipped.
pub(crate) fn is_usable() -> bool {
    requires("chromium", Path::new(PROGRAM).exists())
}

/// A browser with one page.
pub(crate) struct Browser {
    child: Child,
    _profile: TempDir,
    wire: RefCell<WebSocket<MaybeTlsStream<TcpStream>>>,
    session: String,
    asked: std::cell::Cell<u64>,
}

impl Browser {
    pub(crate) fn open(url: &str) -> Self {
        let profile = tempfile::tempdir().unwrap();
        let mut command = Command::new(PROGRAM);
        // Its own sandbox cannot be made in a container of a test machine; nothing here comes from a network.
        command.args([
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
        ]);
        command.args([
            "--no-first-run",
            "--disable-extensions",
            "--disable-background-networking",
        ]);
        command.args([
            "--remote-debugging-port=0",
            "--remote-allow-origins=*",
            "--hide-scrollbars",
        ]);
        command.arg(format!("--user-data-dir={}", profile.path().display()));
        command.arg("about:blank");
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let streams = command.stdin(Stdio::null()).stdout(Stdio::null());
        let mut child = streams.stderr(Stdio::piped()).spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let mut lines = stderr.lines().map_while(Result::ok);
        let address = lines.find_map(|line| line.strip_prefix("DevTools listening on ").map(str::to_owned));
        let address = address.expect("chromium says where it listens");
        // What else it says is thrown away, so that it can go on saying it.
        std::thread::spawn(move || lines.for_each(drop));
        let (wire, _) = tungstenite::connect(address).unwrap();
        if let MaybeTlsStream::Plain(stream) = wire.get_ref() {
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
        }
        let mut browser = Self {
            child,
            _profile: profile,
            wire: RefCell::new(wire),
            session: String::new(),
            asked: std::cell::Cell::new(0),
        };
        let target = browser.ask("Target.createTarget", &json!({"url": "about:blank"}));
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let session = browser.ask("Target.attachToTarget", &attach);
        let session = session["sessionId"].as_str().unwrap();
        session.clone_into(&mut browser.session);
        browser.ask("Page.enable", &json!({}));
        browser.ask("Page.navigate", &json!({"url": url}));
        browser
    }

    /// A command of the protocol and its answer; what else it says is skipped.
    pub(crate) fn ask(&self, method: &str, params: &Value) -> Value {
        let id = self.asked.get() + 1;
        self.asked.set(id);
        let mut message = json!({"id": id, "method": method, "params": params});
        if !self.session.is_empty() {
            message["sessionId"] = json!(self.session);
        }
        let mut wire = self.wire.borrow_mut();
        wire.send(Message::text(message.to_string())).unwrap();
        loop {
            let Message::Text(text) = wire.read().unwrap() else {
                continue;
            };
            let mut answer: Value = serde_json::from_str(&text).unwrap();
            if answer["id"] == id {
                assert!(answer["error"].is_null(), "{method}: {answer}");
                return answer["result"].take();
            }
        }
    }

    /// The value of an expression on the page.
    pub(crate) fn evaluate(&self, expression: &str) -> Value {
        let params = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let mut answer = self.ask("Runtime.evaluate", &params);
        assert!(answer["exceptionDetails"].is_null(), "{expression}: {answer}");
        answer["result"]["value"].take()
    }

    /// All that is written on the page, as a person sees it; a page that is being loaded has no body yet.
    pub(crate) fn text(&self) -> String {
        let text = self.evaluate("document.body?.innerText");
        text.as_str().unwrap_or_default().to_owned()
    }

    pub(crate) fn until(&self, what: &str) {
        eventually(what, || self.text().contains(what).then_some(()));
    }

    /// A picture of the page, as PNG in base64.
    pub(crate) fn picture(&self, width: u32, height: u32, dark: bool) -> String {
        let metrics =
            json!({"width": width, "height": height, "deviceScaleFactor": 2, "mobile": width < 600});
        self.ask("Emulation.setDeviceMetricsOverride", &metrics);
        let scheme = if dark { "dark" } else { "light" };
        let media = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.ask("Emulation.setEmulatedMedia", &media);
        // Drawn anew in the new size and colours: two frames later it is there.
        self.evaluate("new Promise((done) => setTimeout(() => requestAnimationFrame(() => requestAnimationFrame(done)), 300))");
        let picture = self.ask("Page.captureScreenshot", &json!({"format": "png"}));
        picture["data"].as_str().unwrap().to_owned()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // With all the processes it has made.
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process_group(pid, Signal::KILL);
        }
        let _ = self.child.wait();
    }
}
