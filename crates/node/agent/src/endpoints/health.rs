//! What monitoring sees: metrics of the node and of containers, `/stats/summary`, `/healthz` and `/readyz`.

use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::{Method, Request, Response, StatusCode};
use pulselet_runtime::{Runtime, RuntimeCondition};

use crate::endpoints::http::{Answering, Body, full};
use crate::endpoints::metrics::Metrics;
use crate::endpoints::usage::{self, Snapshot, Usage};
use crate::state::health::StateHealth;

const METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// The older format, whose times are in milliseconds: that of a kubelet's pages about containers.
const USAGE_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";
/// How long the runtime may take to say that it is well.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(crate) struct Health {
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) usage: Usage,
    pub(crate) state: StateHealth,
}

/// A document for monitoring, as it is served.
#[derive(Debug)]
pub struct MonitoringPage {
    pub status: StatusCode,
    pub content_type: &'static str,
    pub text: String,
}

impl MonitoringPage {
    fn new(status: StatusCode, content_type: &'static str, text: impl Into<String>) -> Self {
        Self {
            status,
            content_type,
            text: text.into(),
        }
    }
}

impl Answering for Health {
    async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Response<Body> {
        if request.method() != Method::GET {
            return full(StatusCode::METHOD_NOT_ALLOWED, TEXT, "only GET\n");
        }
        let page = self.page(request.uri().path()).await;
        full(page.status, page.content_type, page.text)
    }
}

impl Health {
    /// What is at a path, whichever door it was asked through.
    pub(crate) async fn page(&self, path: &str) -> MonitoringPage {
        match path {
            "/metrics" => MonitoringPage::new(StatusCode::OK, METRICS_TYPE, self.metrics.all()),
            "/metrics/probes" => MonitoringPage::new(StatusCode::OK, METRICS_TYPE, self.metrics.probes()),
            "/metrics/cadvisor" => self.usage_page(USAGE_TYPE, usage::cadvisor).await,
            "/metrics/resource" => self.usage_page(USAGE_TYPE, usage::resource).await,
            "/stats/summary" => self.usage_page(JSON, usage::summary).await,
            "/healthz" => MonitoringPage::new(StatusCode::OK, TEXT, "ok"),
            "/readyz" => self.readiness().await,
            _ => MonitoringPage::new(
                StatusCode::NOT_FOUND,
                TEXT,
                "there is /metrics, /metrics/probes, /metrics/cadvisor, /metrics/resource, /stats/summary, /healthz \
                 and /readyz\n",
            ),
        }
    }

    async fn usage_page(&self, content_type: &'static str, write: fn(&Snapshot) -> String) -> MonitoringPage {
        let snapshot = self.usage.snapshot().await;
        MonitoringPage::new(StatusCode::OK, content_type, write(&snapshot))
    }

    async fn readiness(&self) -> MonitoringPage {
        let not_ready = |why: String| MonitoringPage::new(StatusCode::SERVICE_UNAVAILABLE, TEXT, why);
        if let Some(message) = self.state.trouble() {
            return not_ready(format!("{message}\n"));
        }
        match tokio::time::timeout(HEALTH_TIMEOUT, self.runtime.health()).await {
            Err(_) => not_ready("the runtime does not answer\n".to_owned()),
            Ok(Err(error)) => not_ready(format!("the runtime is not well: {error}\n")),
            Ok(Ok(health)) => match health.runtime {
                RuntimeCondition::Ready => MonitoringPage::new(StatusCode::OK, TEXT, "ok"),
                RuntimeCondition::NotReady { message, .. } => {
                    not_ready(format!("the runtime is not ready: {message}\n"))
                }
            },
        }
    }
}
