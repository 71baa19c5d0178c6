//! The dashboard over HTTP, with a node on a scripted runtime behind it.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod world;

use serde_json::{Value, json};

use world::World;

/// How the first line of every pod ends.
const FIRST_LINE: &str = r#""type":"phase","phase":"Pending""#;

#[tokio::test]
async fn the_secret_opens_the_page_once_and_the_cookie_from_then_on() {
    let mut world = World::start().await;
    let closed = world.get("/", &[]).await;
    assert_eq!(closed.status, 403);
    assert!(closed.body.contains("pulselet dashboard"), "{}", closed.body);
    let path = world.secret_path();
    let opened = world.get(&path, &[]).await;
    assert_eq!(opened.status, 200);
    assert!(opened.body.contains("<title>Pulselet</title>"));
    let cookie = opened.header("set-cookie").unwrap();
    assert!(
        cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"),
        "{cookie}"
    );
    assert_eq!(world.get(&path, &[]).await.status, 403, "the secret was for once");
    assert_eq!(world.get("/api/events", &[]).await.status, 403);
    world.cookie = cookie.split(';').next().unwrap().to_owned();
    for file in [
        "/",
        "/style.css",
        "/page.js",
        "/timeline.js",
        "/details.js",
        "/dom.js",
        "/icon.svg",
    ] {
        let answer = world.get(file, &[]).await;
        assert_eq!(answer.status, 200, "{file}");
        let policy = answer.header("content-security-policy").unwrap();
        assert!(
            policy.starts_with("default-src 'none'; script-src 'self';"),
            "{policy}"
        );
        assert!(!policy.contains("unsafe"), "{policy}");
        assert_eq!(
            answer.header("x-content-type-options").as_deref(),
            Some("nosniff")
        );
    }
    assert_eq!(world.get("/etc/passwd", &[]).await.status, 404);
}

#[tokio::test]
async fn other_hosts_and_origins_are_refused_though_they_have_the_cookie() {
    let world = World::opened().await;
    assert_eq!(world.get("/", &[("Host", "evil.example")]).await.status, 421);
    for headers in [
        ("Origin", "http://evil.example"),
        ("Origin", "null"),
        ("Sec-Fetch-Site", "cross-site"),
    ] {
        assert_eq!(
            world.get("/api/events", &[headers]).await.status,
            403,
            "{headers:?}"
        );
    }
    let without_origin = world.request("POST", "/api/what-if", &[], "{}").await;
    assert_eq!(without_origin.status, 403);
}

#[tokio::test]
async fn a_browser_that_comes_again_goes_on_where_it_was() {
    let world = World::opened().await;
    world.add_pod().await;
    let mut first = world.events(None).await;
    let greeting = first.until("event: state").await;
    assert!(greeting.contains("event: reset"), "{greeting}");
    let text = first.until("\"type\":\"ready\"").await;
    let id = text
        .lines()
        .rev()
        .find_map(|line| line.strip_prefix("id: "))
        .unwrap()
        .to_owned();
    drop(first);
    world.restart_pod().await;
    let mut again = world.events(Some(&id)).await;
    let text = again.until("\"type\":\"exited\"").await;
    assert!(!text.contains("event: reset"), "{text}");
    assert!(!text.contains(FIRST_LINE), "nothing is told twice: {text}");
    let mut lost = world.events(Some("of-another-process.7")).await;
    let text = lost.until(FIRST_LINE).await;
    assert!(text.contains("event: reset"), "{text}");
    let state = again.until("killed\":true").await;
    assert!(state.contains("stopped: restart asked for"), "{state}");
}

#[tokio::test]
async fn a_manifest_has_its_numbers_and_a_change_its_consequences() {
    let world = World::opened().await;
    world.add_pod().await;
    let pod: Value = serde_json::from_str(&world.get("/api/pod?pod=default%2Fweb", &[]).await.body).unwrap();
    assert!(pod["yaml"].as_str().unwrap().contains("name: web"), "{pod}");
    assert_eq!(pod["probes"][0]["kind"], "liveness");
    assert!(
        pod["probes"][0]["goneBySeconds"].as_f64().unwrap() > 30.0,
        "{pod}"
    );
    let change = json!({"pod": "default/web", "container": "app", "kind": "liveness", "fields": {"periodSeconds": 1},
        "trouble": {"failsAt": 20, "seconds": 200}});
    let origin = world.origin();
    let headers = [("Origin", origin.as_str())];
    let answer = world
        .request("POST", "/api/what-if", &headers, &change.to_string())
        .await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let answer: Value = serde_json::from_str(&answer.body).unwrap();
    let killed = |outcome: &Value| {
        let lines = outcome["lines"].as_array().unwrap();
        let kill = lines.iter().find(|line| line["type"] == "killing");
        kill.and_then(|line| line["t"].as_f64()).unwrap()
    };
    assert!(
        killed(&answer["after"]) + 10.0 < killed(&answer["before"]),
        "{answer}"
    );
    for (path, status) in [
        ("/api/pod?pod=default%2Fnone", 404),
        ("/api/pod", 400),
        ("/api/logs?pod=a%2Fb", 400),
    ] {
        assert_eq!(world.get(path, &[]).await.status, status, "{path}");
    }
}
