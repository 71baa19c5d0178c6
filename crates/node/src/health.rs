//! What monitoring sees: `/metrics`, `/metrics/probes`, `/healthz` and `/readyz`.

use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::{Method, Request, Response, StatusCode};
use pulselet_runtime::{Condition, Runtime};

use crate::http::{Answering, Body, full};
use crate::metrics::Metrics;

const METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const TEXT: &str = "text/plain; charset=utf-8";
/// How long the runtime may take to say that it is well.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(crate) struct Health {
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) runtime: Arc<dyn Runtime>,
}

impl Answering for Health {
    async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Response<Body> {
        if request.method() != Method::GET {
            return full(StatusCode::METHOD_NOT_ALLOWED, TEXT, "only GET\n");
        }
        match request.uri().path() {
            "/metrics" => full(StatusCode::OK, METRICS_TYPE, self.metrics.all()),
            "/metrics/probes" => full(StatusCode::OK, METRICS_TYPE, self.metrics.probes()),
            "/healthz" => full(StatusCode::OK, TEXT, "ok"),
            "/readyz" => self.readiness().await,
            _ => full(
                StatusCode::NOT_FOUND,
                TEXT,
                "there is /metrics, /metrics/probes, /healthz and /readyz\n",
            ),
        }
    }
}

impl Health {
    async fn readiness(&self) -> Response<Body> {
        let not_ready = |why: String| full(StatusCode::SERVICE_UNAVAILABLE, TEXT, why);
        match tokio::time::timeout(HEALTH_TIMEOUT, self.runtime.health()).await {
            Err(_) => not_ready("the runtime does not answer\n".to_owned()),
            Ok(Err(error)) => not_ready(format!("the runtime is not well: {error}\n")),
            Ok(Ok(health)) => match health.runtime {
                Condition::Ready => full(StatusCode::OK, TEXT, "ok"),
                Condition::NotReady { message, .. } => {
                    not_ready(format!("the runtime is not ready: {message}\n"))
                }
            },
        }
    }
}
