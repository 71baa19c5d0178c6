//! `/livez`, `/readyz` and `/healthz`: whether the server is well, in one word or check by check.
//!
//! Without a query the answer is `ok` or a `Status`. With `verbose` each check has a line, as upstream writes them, and
//! `exclude=NAME` leaves one out. A single check has a path of its own: `/readyz/store`.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Response, StatusCode};
use http_body_util::{BodyExt as _, Full};

use crate::registry::Registry;
use crate::rest::Body;
use crate::rest::query::Query;
use crate::rest::status::{ApiError, StatusReason};

/// Which of the three, and which check of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HealthPath {
    endpoint: HealthEndpoint,
    /// `None` if all of them are asked for.
    check: Option<HealthCheck>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HealthEndpoint {
    Healthz,
    Livez,
    /// Whether requests can be served, writes among them.
    Readyz,
}

/// Something that must be well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HealthCheck {
    /// The server answers at all.
    Ping,
    /// The store can be read.
    Store,
    /// The store can be written.
    StoreWrites,
}

impl HealthEndpoint {
    const fn name(self) -> &'static str {
        match self {
            Self::Healthz => "healthz",
            Self::Livez => "livez",
            Self::Readyz => "readyz",
        }
    }

    const fn checks(self) -> &'static [HealthCheck] {
        match self {
            Self::Healthz | Self::Livez => &[HealthCheck::Ping, HealthCheck::Store],
            Self::Readyz => &[HealthCheck::Ping, HealthCheck::Store, HealthCheck::StoreWrites],
        }
    }
}

impl HealthCheck {
    const fn name(self) -> &'static str {
        match self {
            Self::Ping => "ping",
            Self::Store => "store",
            Self::StoreWrites => "store-writes",
        }
    }

    async fn run(self, registry: &Registry) -> Result<(), ApiError> {
        match self {
            Self::Ping => Ok(()),
            Self::Store => registry.revision().await.map(drop),
            Self::StoreWrites => match registry.trouble() {
                None => Ok(()),
                Some(trouble) => Err(ApiError::new(
                    StatusReason::ServiceUnavailable,
                    format!("the store cannot be written: {trouble}; make room on the disk"),
                )),
            },
        }
    }
}

impl HealthPath {
    /// What the segments of a path name; `None` if they name no check.
    pub(crate) fn parse(segments: &[&str]) -> Option<Self> {
        let (endpoint, rest) = segments.split_first()?;
        let all = [
            HealthEndpoint::Healthz,
            HealthEndpoint::Livez,
            HealthEndpoint::Readyz,
        ];
        let endpoint = all.into_iter().find(|known| known.name() == *endpoint)?;
        let check = match *rest {
            [] => None,
            [name] => Some(*endpoint.checks().iter().find(|check| check.name() == name)?),
            _ => return None,
        };
        Some(Self { endpoint, check })
    }

    /// Asks what is to be asked.
    pub(crate) async fn answer(
        &self,
        registry: &Registry,
        query: &Query,
    ) -> Result<Response<Body>, ApiError> {
        let asked: Vec<HealthCheck> = match self.check {
            Some(check) => vec![check],
            None => self.endpoint.checks().to_vec(),
        };
        let excluded: Vec<&str> = query.all("exclude").collect();
        let (mut lines, mut failed) = (Vec::new(), None);
        for check in asked {
            let name = check.name();
            if excluded.contains(&name) {
                lines.push(format!("[+]{name} excluded: ok\n"));
                continue;
            }
            match check.run(registry).await {
                Ok(()) => lines.push(format!("[+]{name} ok\n")),
                Err(error) => {
                    lines.push(format!("[-]{name} failed: {error}\n"));
                    failed = failed.or(Some(error));
                }
            }
        }
        // Present is enough: `?verbose` has no value.
        if query.get("verbose").is_none() {
            return failed.map_or_else(|| Ok(text(StatusCode::OK, "ok".to_owned())), Err);
        }
        let code = failed
            .as_ref()
            .map_or(StatusCode::OK, |error| error.reason.code());
        let verdict = if failed.is_some() { "failed" } else { "passed" };
        lines.push(format!("{} check {verdict}\n", self.endpoint.name()));
        Ok(text(code, lines.concat()))
    }
}

fn text(code: StatusCode, text: String) -> Response<Body> {
    let body = Full::new(Bytes::from(text)).map_err(|never| match never {});
    let mut answer = Response::new(body.boxed_unsync());
    *answer.status_mut() = code;
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    answer.headers_mut().insert(CONTENT_TYPE, plain);
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_names_all_checks_or_one() {
        assert!(HealthPath::parse(&["livez"]).is_some());
        assert!(HealthPath::parse(&["readyz", "store-writes"]).is_some());
        for segments in [
            &["livez", "store-writes"][..],
            &["readyz", "x"],
            &["readyz", "store", "x"],
            &["well"],
        ] {
            assert_eq!(HealthPath::parse(segments), None, "{segments:?}");
        }
    }
}
