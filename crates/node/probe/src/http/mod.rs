//! HTTP and HTTPS probes, and the GET of lifecycle hooks: one connection per request, redirects within the host,
//! and the verdict.
//!
//! The client is our own on top of `httparse`: a probe needs a status, three headers and a bounded body, and a general
//! client spends more time on its own machinery than the whole exchange takes on a bare socket.

mod chunked;
mod exchange;
mod request;
mod response;
mod url;

use std::borrow::Cow;
use std::time::Duration;

use thiserror::Error;
use tokio::time::timeout_at;

use self::exchange::{Answer, ExchangeError};
pub use self::request::{HttpRequest, Purpose};
use self::response::{Body, HeadReader};
use self::url::{LocationError, Url};
use crate::report::{Failure, NetworkOutcome, Report, RequestPhase};
use crate::target::Target;
use crate::tls::TlsError;
use crate::{Prober, TimeLimits};

/// Redirects followed by one probe.
const MAX_REDIRECTS: usize = 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheme {
    Http,
    Https,
}

impl Scheme {
    fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }

    fn default_port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }
}

/// Why there is no answer to judge.
#[derive(Debug, Error)]
enum FetchError {
    /// A failure in the middle of a body: upstream does not name the URL there.
    #[error("{0}")]
    Body(ExchangeError),
    #[error("Get \"{url}\": {source}")]
    Exchange { url: String, source: ExchangeError },
    #[error("Get \"{url}\": {source}")]
    Location { url: String, source: LocationError },
    #[error("Get \"{url}\": stopped after {MAX_REDIRECTS} redirects")]
    TooManyRedirects { url: String },
    /// A second request would be one too many of a look; a counted probe follows it.
    #[error("Get \"{url}\": a look does not follow the redirect to {location:?}")]
    NotFollowed { url: String, location: String },
    #[error("{}", timeout_text(.url, .dialled, *.phase))]
    Timeout {
        url: String,
        dialled: String,
        phase: RequestPhase,
    },
}

impl FetchError {
    fn outcome(&self) -> NetworkOutcome {
        match self {
            Self::Body(source) | Self::Exchange { source, .. } => source.outcome(),
            Self::Location { .. } | Self::TooManyRedirects { .. } | Self::NotFollowed { .. } => {
                NetworkOutcome::Failure(Failure::Redirect)
            }
            Self::Timeout { phase, .. } => NetworkOutcome::Failure(Failure::Timeout(*phase)),
        }
    }
}

fn timeout_text(url: &str, dialled: &str, phase: RequestPhase) -> String {
    const AWAITING: &str = "(Client.Timeout exceeded while awaiting headers)";
    match phase {
        RequestPhase::Resolve => format!("Get \"{url}\": dial tcp: lookup {dialled}: i/o timeout {AWAITING}"),
        RequestPhase::Connect => format!("Get \"{url}\": dial tcp {dialled}: i/o timeout {AWAITING}"),
        RequestPhase::Tls => format!("Get \"{url}\": net/http: TLS handshake timeout"),
        RequestPhase::Headers => format!("Get \"{url}\": context deadline exceeded {AWAITING}"),
        RequestPhase::Body => {
            "context deadline exceeded (Client.Timeout or context cancellation while reading body)".to_owned()
        }
    }
}

/// Runs an httpGet probe.
pub(crate) async fn probe(prober: &Prober, request: &HttpRequest, limits: TimeLimits) -> Report {
    let mut progress = Progress::new(request);
    let (outcome, detail) = match get(prober, &limits, &mut progress).await {
        Ok(answer) => judge(answer),
        Err(error) => (error.outcome(), error.to_string()),
    };
    Report {
        outcome,
        detail,
        latency: limits.started.elapsed(),
        connected: progress.phase.is_connected(),
    }
}

/// Runs the httpGet of a lifecycle hook. Any answer is a success, whatever its status. As upstream, a hook that asks
/// for HTTPS where the server speaks HTTP is sent again without TLS, and the report says so.
pub(crate) async fn hook(prober: &Prober, request: &HttpRequest, timeout: Duration) -> Report {
    let limits = TimeLimits::new(timeout);
    let mut progress = Progress::new(request);
    let mut result = get(prober, &limits, &mut progress).await;
    let mut outcome = NetworkOutcome::Success;
    let mut detail = String::new();
    if matches!(
        &result,
        Err(FetchError::Exchange {
            source: ExchangeError::Tls(TlsError::PlainHttp),
            ..
        })
    ) {
        let plain = request.downgraded();
        if let Ok(answer) = get(prober, &limits, &mut Progress::new(&plain)).await {
            result = Ok(answer);
            outcome = NetworkOutcome::Warning;
            detail = format!(
                "request to HTTPS lifecycle hook {} got HTTP response, retry with HTTP succeeded",
                plain.url.authority
            );
        }
    }
    match result {
        Ok(_) | Err(FetchError::Body(_)) => {}
        Err(error) => (outcome, detail) = (error.outcome(), error.to_string()),
    }
    Report {
        outcome,
        detail,
        latency: limits.started.elapsed(),
        connected: progress.phase.is_connected(),
    }
}

fn judge(answer: Answer) -> (NetworkOutcome, String) {
    match answer.head.status {
        200..=299 => (NetworkOutcome::Success, text(answer.body)),
        300..=399 => {
            let detail = format!("Probe terminated redirects, Response body: {}", text(answer.body));
            (NetworkOutcome::Warning, detail)
        }
        status => {
            let detail = format!("HTTP probe failed with statuscode: {status}");
            (NetworkOutcome::Failure(Failure::Status(status)), detail)
        }
    }
}

fn text(body: Vec<u8>) -> String {
    String::from_utf8(body).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

/// How far a request has come, for the words of a timeout.
struct Progress<'a> {
    request: Cow<'a, HttpRequest>,
    phase: RequestPhase,
}

impl<'a> Progress<'a> {
    fn new(request: &'a HttpRequest) -> Self {
        Self {
            request: Cow::Borrowed(request),
            phase: RequestPhase::Connect,
        }
    }
}

async fn get(
    prober: &Prober,
    limits: &TimeLimits,
    progress: &mut Progress<'_>,
) -> Result<Answer, FetchError> {
    if let Ok(result) = timeout_at(limits.deadline, follow(prober, limits, progress)).await {
        result
    } else {
        let url = &progress.request.url;
        let dialled = url.target.to_string();
        Err(FetchError::Timeout {
            url: url.to_string(),
            dialled,
            phase: progress.phase,
        })
    }
}

/// Follows redirects to the same host. The answer is the last one, which may be a redirect that is not followed.
async fn follow(
    prober: &Prober,
    limits: &TimeLimits,
    progress: &mut Progress<'_>,
) -> Result<Answer, FetchError> {
    for _ in 0..=MAX_REDIRECTS {
        let request = &progress.request;
        let fetched = exchange::fetch(prober, request, limits, &mut progress.phase).await;
        let answer = fetched.map_err(|source| match source.phase() {
            Some(RequestPhase::Body) => FetchError::Body(source),
            _ => FetchError::Exchange {
                url: request.url.to_string(),
                source,
            },
        })?;
        let Some(location) = redirect(&answer) else {
            return Ok(answer);
        };
        let joined = request.url.join(location);
        let next = joined.map_err(|source| FetchError::Location {
            url: request.url.to_string(),
            source,
        })?;
        if !next.same_host(&request.url) {
            return Ok(answer);
        }
        if limits.is_look() {
            return Err(FetchError::NotFollowed {
                url: request.url.to_string(),
                location: next.to_string(),
            });
        }
        progress.request = Cow::Owned(request.redirected(next));
    }
    Err(FetchError::TooManyRedirects {
        url: progress.request.url.to_string(),
    })
}

fn redirect(answer: &Answer) -> Option<&str> {
    match answer.head.status {
        301 | 302 | 303 | 307 | 308 => answer.head.location.as_deref(),
        _ => None,
    }
}

/// For a fuzzer: what an answer that arrives in pieces says; `None` if it is malformed.
pub(crate) fn fuzz_answer(bytes: &[u8], piece: usize) -> Option<(u16, Vec<u8>, bool)> {
    let (mut reader, mut buffer) = (HeadReader::default(), Vec::new());
    let mut pieces = bytes.chunks(piece);
    let head = loop {
        let Some(next) = pieces.next() else {
            return Some((0, Vec::new(), false));
        };
        buffer.extend_from_slice(next);
        if let Some(head) = reader.read(&mut buffer).ok()? {
            break head;
        }
    };
    if let Some(location) = &head.location {
        let url = Url::new(Scheme::Http, Target::new("10.0.0.1", 8080), "/a/b?x");
        let line = url.join(location).map(|url| url.to_string()).unwrap_or_default();
        assert!(
            !line.contains(['\r', '\n', ' ']),
            "it would be more than a request line: {line:?}"
        );
    }
    let mut body = Body::new(&head);
    let mut over = body.push(&buffer).ok()?;
    for next in pieces {
        over = over || body.push(next).ok()?;
    }
    Some((head.status, body.into_bytes(), over))
}
