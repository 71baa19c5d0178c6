//! Probe fields that come in an annotation.

use pulselet_model::Pod;
use pulselet_vocabulary::PodName;
use serde_json::json;

use crate::harness::{Bench, pod};

const ANNOTATION: &str = "pulselet.dev/probes";

fn annotated(name: &str, text: &str) -> Pod {
    let mut pod = pod(
        name,
        &json!({"readinessProbe": json!({"exec": {"command": ["check"]}, "periodSeconds": 1})}),
    );
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert(ANNOTATION.to_owned(), text.to_owned());
    pod
}

/// The reasons of a pod's events that speak of the annotation, once these have been written down.
async fn annotation_events(bench: &Bench, name: &str, reasons: &[&str]) -> Vec<String> {
    let found = bench.node.pod(&PodName::new("default", name)).await;
    let view = found.expect("the node is there").expect("the pod is there");
    let events = bench.events(&view.uid, reasons).await;
    let about = events
        .into_iter()
        .filter(|event| event.message.contains(ANNOTATION));
    about.map(|event| event.reason).collect()
}

#[tokio::test]
async fn an_annotation_gives_probes_fields_for_the_whole_life_of_the_pod() {
    let mut bench = Bench::new().await;
    let half = r#"{"app": {"readiness": {"periodMilliseconds": -500}}}"#;
    let mut pod = annotated("web", half);
    pod.metadata.uid = Some("u-1".to_owned());
    bench.add(pod.clone()).await;
    bench.until_ready().await;
    let period = |pod: &Pod| {
        let probe = pod.spec.containers[0].readiness_probe.as_ref().unwrap();
        probe.period_milliseconds
    };
    let name = PodName::new("default", "web");
    let manifest = bench.node.manifest(&name).await.unwrap().unwrap();
    assert_eq!(period(&manifest), Some(-500));
    assert_eq!(annotation_events(&bench, "web", &["Started"]).await, [""; 0]);
    // Another one later, and none at all, change nothing; each is reported.
    let annotations = pod.metadata.annotations.as_mut().unwrap();
    annotations.insert(ANNOTATION.to_owned(), "{}".to_owned());
    for _ in 0..2 {
        bench.node.update_pod(pod.clone()).await.unwrap().unwrap();
    }
    let manifest = bench.node.manifest(&name).await.unwrap().unwrap();
    assert_eq!(period(&manifest), Some(-500));
    let reasons = ["ProbesAnnotationIgnored"];
    assert_eq!(annotation_events(&bench, "web", &reasons).await, reasons);
}

#[tokio::test]
async fn a_bad_annotation_is_reported_and_has_no_effect() {
    let mut bench = Bench::new().await;
    let bad = r#"{"app": {"readiness": {"periodMilliseconds": -600}, "liveness": {}}}"#;
    bench.add(annotated("web", bad)).await;
    bench.until_ready().await;
    let manifest = bench
        .node
        .manifest(&PodName::new("default", "web"))
        .await
        .unwrap()
        .unwrap();
    let probe = manifest.spec.containers[0].readiness_probe.as_ref().unwrap();
    assert_eq!(probe.period_milliseconds, None);
    let reasons = ["InvalidProbesAnnotation"];
    assert_eq!(annotation_events(&bench, "web", &reasons).await, reasons);
}
