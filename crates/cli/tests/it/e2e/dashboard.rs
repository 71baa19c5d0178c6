//! The dashboard in a real browser: a hung pod is killed before one's eyes, and what a container writes stays text.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Stdio};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use super::browser::{self, Browser};
use super::harness::eventually;
use super::world::{Node, World, e2e};

/// A running `pulselet dashboard`, and the address that it printed.
struct Page {
    child: Child,
    url: String,
}

impl Page {
    fn start(world: &World) -> Self {
        let mut command = world.command("dashboard");
        let streams = command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = streams.stderr(Stdio::null()).spawn().unwrap();
        let mut url = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut url)
            .unwrap();
        let url = url.trim().to_owned();
        assert!(
            url.starts_with("http://127.0.0.1:") && url.contains("/?secret="),
            "{url}"
        );
        Self { child, url }
    }

    fn interrupt(mut self) -> Option<i32> {
        let pid = i32::try_from(self.child.id())
            .ok()
            .and_then(Pid::from_raw)
            .unwrap();
        kill_process(pid, Signal::INT).unwrap();
        self.child.wait().unwrap().code()
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a hostile container prints; were it markup, the page's title would change.
const MARKUP: &str =
    "<script>document.title = 'taken'</script><img src=x onerror=\"document.title = 'taken'\">";

fn write_manifests(world: &World) {
    std::fs::create_dir(world.path("manifests")).unwrap();
    let hung = world.server("app", &["--deadlock-at", "4s", "--ignore", "SIGTERM"], |http| {
        json!({
            "livenessProbe": http(json!({"periodSeconds": 1, "failureThreshold": 2, "timeoutSeconds": 1,
                "terminationGracePeriodSeconds": 2})),
            "readinessProbe": http(json!({"periodSeconds": 1})),
        })
    });
    let hung = world.manifest("hung", &json!({"containers": [hung]}));
    std::fs::rename(hung, world.path("manifests/hung.json")).unwrap();
    let script = format!(
        "echo '{}'; while :; do date; sleep 1; done",
        MARKUP.replace('\'', "'\\''")
    );
    let steady = world.container("printer", &["sh", "-c", &script]);
    let steady = world.manifest("printer", &json!({"containers": [steady]}));
    std::fs::rename(steady, world.path("manifests/printer.json")).unwrap();
}

e2e!(
    a_hung_pod_is_killed_on_the_page_and_a_log_stays_text,
    [Process],
    |world| {
        if !browser::is_usable() {
            return;
        }
        write_manifests(world);
        let node = Node::start(world);
        eventually("pods", || (world.pods()?.len() == 2).then_some(()));
        let page = Page::start(world);
        let browser = Browser::open(&page.url);
        browser.until("2 pods");
        browser.until("default/hung");
        assert_eq!(
            browser.evaluate("location.search"),
            "",
            "the secret is gone from the address"
        );
        // The kill comes to the page by itself.
        browser.until("killed by liveness: 2 × no answer in time");
        browser.until("SIGTERM ignored, SIGKILL");
        let label = browser.evaluate("document.querySelector('article canvas').getAttribute('aria-label')");
        assert!(label.as_str().unwrap().contains("kills"), "{label}");
        let drawn = "(() => { const c = document.querySelector('article canvas'); \
                 return c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some((v) => v > 0); })()";
        assert_eq!(browser.evaluate(drawn), true, "the timeline is drawn");
        if let Some(directory) = std::env::var_os("PULSELET_PICTURES") {
            take_pictures(&browser, std::path::Path::new(&directory));
        }
        // What a container writes is shown as it is.
        browser.evaluate("location.hash = '#/pod/default/printer'");
        browser.until(MARKUP);
        assert_eq!(browser.evaluate("document.title"), "Pulselet");
        assert_eq!(
            browser.evaluate("document.querySelectorAll('main script, main img').length"),
            0
        );
        // Its manifest, and what a change would mean.
        browser.evaluate("location.hash = '#/pod/default/hung/manifest'");
        browser.until("Notices a hang after");
        browser.until("terminationGracePeriodSeconds: 2");
        browser.evaluate("location.hash = '#/pod/default/hung/change'");
        eventually("form", || {
            let there = browser.evaluate("!!document.querySelector('form button')");
            (there == true).then_some(())
        });
        browser.evaluate("document.querySelector('form button').click()");
        browser.until("As it would be");
        browser.until("Killed at");
        eventually("As it was", || {
            // The page may know no more of the last end than that there was one, until it is told again.
            browser.evaluate("document.querySelector('form button').click()");
            browser.text().contains("As it was").then_some(())
        });
        can_be_used_by_keyboard_and_ear(&browser);
        fits_a_phone_and_the_dark(&browser);
        // An agent that ends and one that comes are both noticed.
        drop(node);
        browser.until("the agent does not answer");
        let node = Node::start(world);
        eventually("live again", || {
            let link = browser.evaluate("document.getElementById('link').textContent");
            (link == "live").then_some(())
        });
        drop(browser);
        assert_eq!(page.interrupt(), Some(0));
        let stopped = world.command("stop").arg("--all").output().unwrap();
        assert!(stopped.status.success(), "{stopped:?}");
        drop(node);
    }
);

/// Everything that is done with a pointer can be done with keys, and a screen reader has words for what is drawn.
fn can_be_used_by_keyboard_and_ear(browser: &Browser) {
    let press = |key: &str| {
        for kind in ["keyDown", "keyUp"] {
            let text = if key.len() == 1 && kind == "keyDown" {
                key
            } else {
                ""
            };
            browser.ask(
                "Input.dispatchKeyEvent",
                &json!({"type": kind, "key": key, "text": text}),
            );
        }
    };
    let is_live =
        "[...document.querySelectorAll('button')].find((it) => it.textContent === 'Live').ariaPressed";
    browser.evaluate("location.hash = '#/pod/default/hung'");
    browser.until("What happened");
    browser.evaluate("document.querySelector('canvas').focus()");
    assert_eq!(browser.evaluate(is_live), "true");
    press("ArrowLeft");
    assert_eq!(
        browser.evaluate(is_live),
        "false",
        "an arrow moves the timeline into the past"
    );
    press("0");
    assert_eq!(browser.evaluate(is_live), "true");
    browser.evaluate("document.getElementById('tab-logs').focus()");
    press("ArrowRight");
    let chosen = "document.querySelector('[role=tab][aria-selected=true]').textContent";
    assert_eq!(browser.evaluate(chosen), "What happened");
    assert_eq!(browser.evaluate("document.activeElement.id"), "tab-happened");
    let tree = browser.ask("Accessibility.getFullAXTree", &json!({}));
    let nodes = tree["nodes"].as_array().unwrap();
    let has = |role: &str, words: &str| {
        nodes.iter().any(|node| {
            let name = node["name"]["value"].as_str().unwrap_or_default();
            node["role"]["value"] == role && name.contains(words)
        })
    };
    for (role, words) in [
        ("image", "Timeline of default/hung"),
        ("tablist", "Details"),
        ("tab", "Manifest and numbers"),
        ("columnheader", "Restarts"),
        ("link", "All pods"),
        ("status", ""),
    ] {
        assert!(has(role, words), "no {role} {words:?}: {tree}");
    }
    press("Escape");
    eventually("all pods", || {
        (browser.evaluate("location.hash") == "#/").then_some(())
    });
}

fn fits_a_phone_and_the_dark(browser: &Browser) {
    let ground = "getComputedStyle(document.body).backgroundColor";
    browser.picture(390, 844, false);
    let light = browser.evaluate(ground);
    for page in [
        "#/",
        "#/pod/default/hung",
        "#/pod/default/hung/manifest",
        "#/pod/default/hung/change",
    ] {
        browser.evaluate(&format!("location.hash = '{page}'"));
        browser.until("hung");
        let overflow = browser.evaluate("document.documentElement.scrollWidth - innerWidth");
        assert!(
            overflow.as_i64().is_some_and(|pixels| pixels <= 0),
            "{page} is {overflow} too wide"
        );
    }
    browser.picture(1280, 800, true);
    assert_ne!(
        browser.evaluate(ground),
        light,
        "the dark has a ground of its own"
    );
    browser.picture(1280, 800, false);
}

/// The pictures of docs/pictures, where somebody asks for them.
fn take_pictures(browser: &Browser, directory: &std::path::Path) {
    let save = |name: &str, picture: &str| {
        let mut file = std::fs::File::create(directory.join(name)).unwrap();
        let bytes = BASE64_STANDARD.decode(picture).unwrap();
        file.write_all(&bytes).unwrap();
    };
    // Some more of its story, so that there is something to see.
    eventually("another kill", || {
        let restarts = browser.text().contains("2 restarts");
        restarts.then_some(())
    });
    browser.evaluate(
        "[...document.querySelectorAll('button')].find((it) => it.textContent === '1 min').click()",
    );
    save("dashboard.png", &browser.picture(1280, 620, false));
    save("dashboard-dark.png", &browser.picture(1280, 620, true));
    save("dashboard-phone.png", &browser.picture(390, 844, false));
    browser.picture(1280, 800, false);
    browser.evaluate("location.hash = '#/pod/default/hung'");
    browser.until("What happened");
    // Where the manifest of a test is says nothing to a reader.
    browser.evaluate("document.querySelector('.facts').remove()");
    browser.evaluate("document.getElementById('tab-change').click()");
    browser.until("It hangs at the age of");
    browser.evaluate("document.querySelector('input[name=failureThreshold]').value = '1'");
    browser.evaluate("document.querySelector('form button').click()");
    browser.until("As it would be");
    save("dashboard-change.png", &browser.picture(1280, 1130, false));
}
