//! The ports of Services: what is rejected, in the words of a v1.36.4 server, and what a change of the type does to them.

use http::Method;
use serde_json::{Value, json};

use crate::client::{Client, collect};
use crate::harness::TestServer;

const SERVICES: &str = "/api/v1/namespaces/default/services";
const APPLY: &str = "application/apply-patch+yaml";
const MERGE: &str = "application/merge-patch+json";

fn service(spec: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": spec})
}

/// Specs that are rejected, and why.
fn rejected() -> Vec<(Value, &'static str)> {
    let a = |port: u32, more: &Value| {
        let mut port = json!({"name": "a", "port": port});
        for (field, value) in more.as_object().into_iter().flatten() {
            port[field] = value.clone();
        }
        port
    };
    let node_port = |kind: &str, port: i64| json!({"type": kind, "ports": [{"port": 80, "nodePort": port}]});
    vec![
        (
            node_port("ClusterIP", 26_443),
            "spec.ports[0].nodePort: Forbidden: may not be used when `type` is 'ClusterIP'",
        ),
        (
            node_port("ClusterIP", 30_080),
            "spec.ports[0].nodePort: Forbidden: may not be used when `type` is 'ClusterIP'",
        ),
        (
            json!({"clusterIP": "None", "ports": [{"port": 80, "nodePort": 22}]}),
            "spec.ports[0].nodePort: Forbidden: may not be used when `type` is 'ClusterIP'",
        ),
        (
            json!({"type": "NodePort", "clusterIP": "None", "ports": [{"port": 80}]}),
            "spec.clusterIPs[0]: Invalid value: \"None\": may not be set to 'None' for NodePort services",
        ),
        (
            node_port("NodePort", 22),
            "spec.ports[0].nodePort: Invalid value: 22: provided port is not in the valid range. The range of valid ports \
             is 30000-32767",
        ),
        (
            node_port("LoadBalancer", -1),
            "spec.ports[0].nodePort: Invalid value: -1: provided port is not in the valid range. The range of valid ports \
             is 30000-32767",
        ),
        (
            json!({"ports": [a(80, &json!({})), a(80, &json!({"name": "b", "nodePort": 0}))]}),
            "spec.ports[1]: Duplicate value: {\"Name\":\"\",\"Protocol\":\"TCP\",\"AppProtocol\":null,\"Port\":80,\
             \"TargetPort\":0,\"NodePort\":0}",
        ),
        (
            json!({"ports": [a(80, &json!({})), a(81, &json!({}))]}),
            "spec.ports[1].name: Duplicate value: \"a\"",
        ),
        (
            json!({"ports": [a(80, &json!({})), {"port": 81}]}),
            "spec.ports[1].name: Required value",
        ),
        (
            json!({"type": "NodePort", "ports": [a(80, &json!({"nodePort": 30_080})),
                a(81, &json!({"name": "b", "nodePort": 30_080}))]}),
            "spec.ports[1].nodePort: Duplicate value: 30080",
        ),
        (
            json!({"ports": [a(80, &json!({"protocol": "tcp"}))]}),
            "spec.ports[0].protocol: Unsupported value: \"tcp\": supported values: \"SCTP\", \"TCP\", \"UDP\"",
        ),
        (
            json!({"ports": [a(80, &json!({"nodePort": 22})), a(80, &json!({}))]}),
            "[spec.ports[1].name: Duplicate value: \"a\", spec.ports[0].nodePort: Forbidden: may not be used when `type` is \
             'ClusterIP', spec.ports[1]: Duplicate value: {\"Name\":\"\",\"Protocol\":\"TCP\",\"AppProtocol\":null,\
             \"Port\":80,\"TargetPort\":0,\"NodePort\":0}]",
        ),
    ]
}

async fn patch(client: &mut Client, path: &str, kind: &'static str, body: &Value) -> (u16, Value) {
    let answer = client.send(Method::PATCH, path, kind, body.to_string()).await;
    let (code, body) = collect(answer).await;
    (
        code.as_u16(),
        serde_json::from_slice(&body).expect("answers are JSON"),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_ports_are_rejected_however_they_are_written() {
    let server = TestServer::start();
    let mut client = Client::admin(&server).await;
    let web = format!("{SERVICES}/web");
    let apply = format!("{web}?fieldManager=t&force=true");
    let mut wrong = Vec::new();
    for (spec, why) in rejected() {
        let expected = format!("Service \"web\" is invalid: {why}");
        let body = service(&spec);
        let mut answers = vec![client.post(SERVICES, &body).await];
        let (code, answer) = patch(&mut client, &apply, APPLY, &body).await;
        assert!((400..500).contains(&code), "{answer}");
        assert_eq!(client.get(&web).await.0, 404, "{spec}");
        let mut good = spec.clone();
        good["ports"] = json!([{"name": "good", "port": 7}]);
        if spec["type"] == "NodePort" {
            good["clusterIP"] = json!("");
        }
        let (code, made) = client.post(SERVICES, &service(&good)).await;
        assert_eq!(code, 201, "{made}");
        answers.push(client.json(Method::PUT, &web, Some(&body)).await);
        answers.push(patch(&mut client, &web, MERGE, &body).await);
        // Over a port of another manager; those of the same number and protocol become one, which is right.
        if !why.contains("spec.ports[1]: Duplicate value") {
            let (code, answer) = patch(&mut client, &apply, APPLY, &body).await;
            assert!((400..500).contains(&code), "{answer}");
        }
        let (_, kept) = client.get(&web).await;
        assert_eq!(kept["spec"], made["spec"]);
        client.json(Method::DELETE, &web, None).await;
        for (code, answer) in answers {
            if code != 422 || answer["message"] != expected {
                wrong.push(format!("{code} {}\nexpected {expected}", answer["message"]));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{} differ:\n{}",
        wrong.len(),
        wrong.join("\n\n")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn valid_ports_are_accepted_as_before() {
    let server = TestServer::start();
    let mut client = Client::admin(&server).await;
    for spec in [
        // One number for both protocols, as name servers have it.
        json!({"ports": [{"name": "udp", "port": 53, "protocol": "UDP"}, {"name": "tcp", "port": 53}]}),
        json!({"type": "NodePort", "ports": [{"name": "udp", "port": 53, "protocol": "UDP", "nodePort": 30_053},
            {"name": "tcp", "port": 53, "nodePort": 30_053}]}),
        json!({"ports": [{"port": 80, "nodePort": 0}]}),
        json!({"clusterIP": "None", "ports": [{"name": "a", "port": 80}, {"name": "b", "port": 81}]}),
        // As upstream: nothing is programmed for it, and nothing is taken.
        json!({"type": "ExternalName", "externalName": "example.com", "ports": [{"port": 80, "nodePort": 30_053}]}),
        json!({"type": "LoadBalancer", "ports": [{"port": 80, "nodePort": 30_053}]}),
    ] {
        let (code, made) = client.post(SERVICES, &service(&spec)).await;
        assert_eq!(code, 201, "{made}");
        let path = format!("{SERVICES}/web");
        let (code, again) = client.json(Method::PUT, &path, Some(&service(&spec))).await;
        assert_eq!((code, &again["spec"]), (200, &made["spec"]));
        client.json(Method::DELETE, &path, None).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_type_without_node_ports_loses_those_that_were_not_changed() {
    let server = TestServer::start();
    let mut client = Client::admin(&server).await;
    let web = format!("{SERVICES}/web");
    let balanced =
        json!({"type": "LoadBalancer", "loadBalancerClass": "example.com/a", "ports": [{"port": 80}]});
    let to_cluster_ip = json!({"spec": {"type": "ClusterIP"}});
    let (code, made) = client.post(SERVICES, &service(&balanced)).await;
    assert_eq!(
        (code, &made["spec"]["ports"][0]["nodePort"]),
        (201, &json!(30_000))
    );
    let (code, changed) = patch(&mut client, &web, MERGE, &to_cluster_ip).await;
    assert_eq!(code, 200, "{changed}");
    assert_eq!(
        changed["spec"]["ports"],
        json!([{"port": 80, "protocol": "TCP", "targetPort": 80}])
    );
    for field in [
        "allocateLoadBalancerNodePorts",
        "loadBalancerClass",
        "externalTrafficPolicy",
    ] {
        assert_eq!(changed["spec"].get(field), None, "{field}");
    }
    // The port is free again, and is not the Service's any more.
    let mut other = service(&json!({"type": "NodePort", "ports": [{"port": 80, "nodePort": 30_000}]}));
    other["metadata"]["name"] = json!("other");
    assert_eq!(client.post(SERVICES, &other).await.0, 201);
    let to_node_port = json!({"spec": {"type": "NodePort"}});
    let (_, back) = patch(&mut client, &web, MERGE, &to_node_port).await;
    assert_eq!(back["spec"]["ports"][0]["nodePort"], 30_001);
    // A node port that comes with the other type is an error, not dropped.
    let with_port = json!({"spec": {"type": "ClusterIP", "ports": [{"port": 80, "nodePort": 30_002}]}});
    let (code, status) = patch(&mut client, &web, MERGE, &with_port).await;
    assert_eq!(code, 422);
    assert_eq!(status["details"]["causes"][0]["field"], "spec.ports[0].nodePort");
    // Applied by a manifest that names the port, and by one that does not.
    let apply = format!("{web}?fieldManager=t&force=true");
    for spec in [
        json!({"type": "ClusterIP", "ports": [{"port": 80, "nodePort": 30_001}]}),
        json!({"type": "NodePort", "ports": [{"port": 80}]}),
        json!({"type": "ExternalName", "externalName": "example.com", "ports": [{"port": 80}]}),
    ] {
        let (code, applied) = patch(&mut client, &apply, APPLY, &service(&spec)).await;
        assert_eq!(code, 200, "{applied}");
        let port = &applied["spec"]["ports"][0]["nodePort"];
        assert_eq!(port.is_u64(), spec["type"] == "NodePort", "{applied}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_keeps_its_node_port_unless_another_one_takes_it() {
    let server = TestServer::start();
    let mut client = Client::admin(&server).await;
    let ports = json!([{"name": "a", "port": 80, "nodePort": 30_080}, {"name": "b", "port": 81}]);
    let spec = json!({"type": "NodePort", "ports": ports});
    assert_eq!(client.post(SERVICES, &service(&spec)).await.0, 201);
    let ports = json!([{"name": "a", "port": 80}, {"name": "b", "port": 81, "nodePort": 30_080}]);
    let spec = json!({"type": "NodePort", "ports": ports});
    let path = format!("{SERVICES}/web");
    let (code, moved) = client.json(Method::PUT, &path, Some(&service(&spec))).await;
    assert_eq!(code, 200, "{moved}");
    let ports = &moved["spec"]["ports"];
    assert_eq!(ports[1]["nodePort"], 30_080);
    assert_ne!(ports[0]["nodePort"], 30_080, "{ports}");
}
