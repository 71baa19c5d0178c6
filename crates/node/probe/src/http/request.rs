//! The request of an HTTP probe or hook: what the manifest says, made into bytes once.
//!
//! The bytes always ask the server to close the connection, and never hold a line break that a manifest smuggled
//! into a header.

use thiserror::Error;

use super::Scheme;
use super::url::Url;
use crate::target::Target;

/// A GET request, ready to be sent any number of times.
#[derive(Debug, Clone)]
pub struct HttpRequest {
    pub(super) url: Url,
    pub(super) bytes: Result<Box<[u8]>, HeaderError>,
    purpose: Purpose,
    /// The Host header, where it is not the URL's own.
    host: Option<String>,
    headers: Vec<(String, String)>,
}

/// What a request is for; servers see it in the User-Agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    Probe,
    LifecycleHook,
}

/// A header that cannot be sent. Found when the request is made, reported as the failure of every probe with it.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(crate) enum HeaderError {
    #[error("net/http: invalid header field name {0:?}")]
    Name(String),
    #[error("net/http: invalid header field value for {0:?}")]
    Value(String),
}

/// Headers that the request has in its own right, or that would change how it is framed.
const NOT_FORWARDED: [&str; 7] = [
    "host",
    "user-agent",
    "accept",
    "connection",
    "content-length",
    "transfer-encoding",
    "trailer",
];

impl HttpRequest {
    /// `path` may carry a query; `headers` are sent in their order, except that a Host header sets the
    /// host, an empty Accept or User-Agent header removes it, and those that frame a message are left out.
    pub fn new(
        purpose: Purpose,
        scheme: Scheme,
        target: Target,
        path: &str,
        headers: Vec<(String, String)>,
    ) -> Self {
        let url = Url::new(scheme, target, path);
        let host = first(&headers, "host")
            .filter(|host| !host.is_empty())
            .map(str::to_owned);
        Self::encoded(url, purpose, host, headers)
    }

    /// The same request to where a redirect leads. A Host header of the manifest stays as long as the redirects stay
    /// at the same server; another one is called by its own name.
    pub(super) fn redirected(&self, url: Url) -> Self {
        let same_server = url.authority == self.url.authority && url.scheme == self.url.scheme;
        let host = self.host.clone().filter(|_| same_server);
        Self::encoded(url, self.purpose, host, self.headers.clone())
    }

    /// The same request without TLS, and so without credentials.
    pub(super) fn downgraded(&self) -> Self {
        let mut headers = self.headers.clone();
        headers.retain(|(name, _)| !name.eq_ignore_ascii_case("authorization"));
        Self::new(
            self.purpose,
            Scheme::Http,
            self.url.target.clone(),
            &self.url.path,
            headers,
        )
    }

    fn encoded(url: Url, purpose: Purpose, host: Option<String>, headers: Vec<(String, String)>) -> Self {
        let bytes = encode(&url, purpose, host.as_deref(), &headers);
        Self {
            url,
            bytes,
            purpose,
            host,
            headers,
        }
    }
}

impl Purpose {
    fn user_agent(self) -> &'static str {
        match self {
            Self::Probe => "kube-probe/1.36",
            Self::LifecycleHook => "kube-lifecycle/1.36",
        }
    }
}

fn encode(
    url: &Url,
    purpose: Purpose,
    host: Option<&str>,
    headers: &[(String, String)],
) -> Result<Box<[u8]>, HeaderError> {
    for (name, value) in headers {
        check(name, value)?;
    }
    let mut out = format!(
        "GET {} HTTP/1.1\r\nHost: {}\r\n",
        url.path,
        host.unwrap_or(&url.authority)
    );
    let own = [("User-Agent", purpose.user_agent()), ("Accept", "*/*")];
    for (name, default) in own {
        match first(headers, name) {
            None => line(&mut out, name, default),
            Some("") => {}
            Some(_) => all(headers, name).for_each(|value| line(&mut out, name, value)),
        }
    }
    for (name, value) in headers {
        if !NOT_FORWARDED.iter().any(|own| name.eq_ignore_ascii_case(own)) {
            line(&mut out, name, value);
        }
    }
    out.push_str("Connection: close\r\n\r\n");
    Ok(out.into_bytes().into())
}

fn line(out: &mut String, name: &str, value: &str) {
    for part in [name, ": ", value.trim_matches([' ', '\t']), "\r\n"] {
        out.push_str(part);
    }
}

fn all<'a>(headers: &'a [(String, String)], name: &'a str) -> impl Iterator<Item = &'a str> {
    headers
        .iter()
        .filter(move |(given, _)| given.eq_ignore_ascii_case(name))
        .map(|(_, value)| value.as_str())
}

fn first<'a>(headers: &'a [(String, String)], name: &'a str) -> Option<&'a str> {
    all(headers, name).next()
}

fn check(name: &str, value: &str) -> Result<(), HeaderError> {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if name.is_empty() || !name.bytes().all(is_token) {
        return Err(HeaderError::Name(name.to_owned()));
    }
    if value.bytes().any(|byte| byte.is_ascii_control() && byte != b'\t') {
        return Err(HeaderError::Value(name.to_owned()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(purpose: Purpose, headers: &[(&str, &str)]) -> Result<String, HeaderError> {
        let headers = headers
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        let request = HttpRequest::new(purpose, Scheme::Http, Target::new("::1", 80), "/h?q", headers);
        request
            .bytes
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    #[test]
    fn defaults() {
        let expected = "GET /h?q HTTP/1.1\r\nHost: [::1]:80\r\nUser-Agent: kube-probe/1.36\r\nAccept: */*\r\n\
                        Connection: close\r\n\r\n";
        assert_eq!(sent(Purpose::Probe, &[]).as_deref(), Ok(expected));
        let hook = sent(Purpose::LifecycleHook, &[]).expect("a request");
        assert!(hook.contains("User-Agent: kube-lifecycle/1.36\r\n"));
    }

    #[test]
    fn the_manifests_headers_win() {
        let headers = [
            ("host", "web.example"),
            ("user-agent", "mine/1"),
            ("ACCEPT", ""),
            ("X-Two", "a"),
            ("x-two", " b "),
            ("Connection", "keep-alive"),
            ("Content-Length", "7"),
        ];
        let expected = "GET /h?q HTTP/1.1\r\nHost: web.example\r\nUser-Agent: mine/1\r\nX-Two: a\r\nx-two: b\r\n\
                        Connection: close\r\n\r\n";
        assert_eq!(sent(Purpose::Probe, &headers).as_deref(), Ok(expected));
    }

    #[test]
    fn headers_cannot_smuggle() {
        let value = sent(Purpose::Probe, &[("X", "a\r\nEvil: b")]);
        assert_eq!(value, Err(HeaderError::Value("X".to_owned())));
        for name in ["", "A b", "A:", "A\n"] {
            assert_eq!(
                sent(Purpose::Probe, &[(name, "v")]),
                Err(HeaderError::Name(name.to_owned()))
            );
        }
        assert!(sent(Purpose::Probe, &[("Host", "a\nb")]).is_err());
    }
}
