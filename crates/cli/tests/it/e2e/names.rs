//! Pods of a run find each other by name.

use serde_json::json;

use super::world::{e2e, port, with};

e2e!(a_pod_of_a_run_reaches_another_by_its_name, [Oci], |world| {
    let port = port();
    let web = json!({"containers": [world.listening("app", port, &[])]});
    // Whoever has asked too early asks again: the other pod may not run yet.
    let ask = format!(
        "import socket, time\n\
         while True:\n try: socket.create_connection(('web',{port}),timeout=5).close(); break\n except OSError: time.sleep(0.1)\n\
         found=socket.gethostbyname('web.default.svc.cluster.local')\n\
         assert found==socket.gethostbyname('web.default')==socket.gethostbyname('web.default.pod.cluster.local')\n\
         assert socket.gethostbyaddr(found)[0]=='web.default.pod.cluster.local'\n\
         try: socket.gethostbyname('nobody'); raise SystemExit('nobody is found')\n\
         except socket.gaierror: pass"
    );
    let script = format!("python3 -c \"{ask}\" && touch /tmp/found; exec sleep 1000000");
    let probe =
        json!({"readinessProbe": {"exec": {"command": ["test", "-e", "/tmp/found"]}, "periodSeconds": 1}});
    let client = with(world.container("app", &["sh", "-c", &script]), probe);
    let files = [
        world.manifest("client", &json!({"containers": [client]})),
        world.manifest("web", &web),
    ];
    let mut run = world.run_command(&files);
    let ended = run.args(["--wait", "ready", "--timeout", "60s"]).output();
    let ended = ended.expect("pulselet runs");
    assert_eq!(ended.status.code(), Some(0), "{ended:?}");
});
