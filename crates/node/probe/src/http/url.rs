//! The address of an HTTP probe, and where a redirect leads from it.

use std::fmt;

use http::uri::Authority;
use thiserror::Error;

use super::Scheme;
use crate::target::Target;
use crate::wording;

/// A URL as a probe uses it: no user, no fragment, and a path that can stand in a request line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Url {
    pub(crate) scheme: Scheme,
    pub(crate) target: Target,
    /// Host and port as they stand in the URL and in the Host header.
    pub(crate) authority: String,
    /// Path and query, escaped, starting with a slash.
    pub(crate) path: String,
}

#[derive(Debug, Error, PartialEq, Eq)]
pub(crate) enum LocationError {
    #[error("failed to parse Location header {0}: invalid host")]
    Host(String),
    #[error("unsupported protocol scheme {0}")]
    Scheme(String),
}

impl Url {
    pub(crate) fn new(scheme: Scheme, target: Target, path: &str) -> Self {
        let authority = target.to_string();
        Self {
            scheme,
            target,
            authority,
            path: escaped(path),
        }
    }

    /// Where a Location header leads.
    pub(crate) fn join(&self, location: &str) -> Result<Self, LocationError> {
        let location = without_fragment(location.trim());
        if let Some((scheme, rest)) = split_scheme(location) {
            let scheme = match scheme.to_ascii_lowercase().as_str() {
                "http" => Scheme::Http,
                "https" => Scheme::Https,
                _ => return Err(LocationError::Scheme(wording::quoted(scheme.as_bytes()))),
            };
            let Some(rest) = rest.strip_prefix("//") else {
                return Err(LocationError::Host(wording::quoted(location.as_bytes())));
            };
            return Self::absolute(scheme, rest);
        }
        if let Some(rest) = location.strip_prefix("//") {
            return Self::absolute(self.scheme, rest);
        }
        Ok(Self {
            path: self.relative_path(location),
            ..self.clone()
        })
    }

    /// Names compare as written, ports and schemes do not matter.
    pub(crate) fn same_host(&self, other: &Self) -> bool {
        self.target.host() == other.target.host()
    }

    fn absolute(scheme: Scheme, rest: &str) -> Result<Self, LocationError> {
        let split = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(split);
        let invalid = || LocationError::Host(wording::quoted(authority.as_bytes()));
        // A user and password are not for a probe to send.
        let authority = authority.rsplit('@').next().unwrap_or(authority);
        let parsed: Authority = authority.parse().map_err(|_| invalid())?;
        let host = parsed.host();
        let port = match authority[host.len()..].strip_prefix(':') {
            None | Some("") => scheme.default_port(),
            Some(port) => port.parse().map_err(|_| invalid())?,
        };
        if host.is_empty() {
            return Err(invalid());
        }
        let target = Target::new(host, port);
        Ok(Self {
            scheme,
            target,
            authority: authority.to_owned(),
            path: escaped(&without_dots(path)),
        })
    }

    fn relative_path(&self, location: &str) -> String {
        let base = self.path.split('?').next().unwrap_or("/");
        if location.is_empty() {
            return self.path.clone();
        }
        if location.starts_with('?') {
            return escaped(&format!("{base}{location}"));
        }
        if location.starts_with('/') {
            return escaped(&without_dots(location));
        }
        let directory = base.rfind('/').map_or("/", |slash| &base[..=slash]);
        escaped(&without_dots(&format!("{directory}{location}")))
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}{}", self.scheme.as_str(), self.authority, self.path)
    }
}

fn split_scheme(location: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = location.split_once(':')?;
    let mut bytes = scheme.bytes();
    let valid = bytes.next().is_some_and(|first| first.is_ascii_alphabetic())
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
    valid.then_some((scheme, rest))
}

fn without_fragment(text: &str) -> &str {
    text.split('#').next().unwrap_or("")
}

/// Makes a path fit for a request line: a leading slash, and everything percent-encoded that may not stand there.
/// Escapes that are already there are kept; a stray percent sign is one more thing to encode.
fn escaped(path: &str) -> String {
    let path = without_fragment(path);
    let mut out = String::with_capacity(path.len() + 1);
    if !path.starts_with('/') {
        out.push('/');
    }
    for (index, byte) in path.bytes().enumerate() {
        let stands = match byte {
            b'%' => is_escape(&path.as_bytes()[index..]),
            _ => byte.is_ascii_alphanumeric() || b"-_.~!$&'()*+,;=:@[]/?".contains(&byte),
        };
        if stands {
            out.push(char::from(byte));
        } else {
            out.push('%');
            out.push(hex_digit(byte >> 4));
            out.push(hex_digit(byte & 0xf));
        }
    }
    out
}

fn is_escape(bytes: &[u8]) -> bool {
    matches!(bytes, [b'%', high, low, ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit())
}

fn hex_digit(nibble: u8) -> char {
    char::from_digit(u32::from(nibble), 16)
        .expect("four bits are one hex digit")
        .to_ascii_uppercase()
}

/// Resolves `.` and `..` in the path before the query.
fn without_dots(path: &str) -> String {
    let (path, query) = path.find('?').map_or((path, ""), |at| path.split_at(at));
    let mut kept: Vec<&str> = Vec::new();
    let mut segments = path.split('/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        let last = segments.peek().is_none();
        match segment {
            "." | ".." => {
                if segment == ".." {
                    kept.pop();
                }
                if last {
                    kept.push("");
                }
            }
            _ => kept.push(segment),
        }
    }
    format!("/{}{query}", kept.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(path: &str) -> Url {
        Url::new(Scheme::Http, Target::new("10.0.0.1", 8080), path)
    }

    #[test]
    fn paths_are_made_fit_for_a_request_line() {
        let cases = [
            ("/healthz", "/healthz"),
            ("healthz", "/healthz"),
            ("", "/"),
            ("/a b\r\nX: y", "/a%20b%0D%0AX:%20y"),
            ("/q?a=1&b=%20c#frag", "/q?a=1&b=%20c"),
            ("/%zz%4", "/%25zz%254"),
            ("/ü", "/%C3%BC"),
        ];
        for (given, sent) in cases {
            assert_eq!(url(given).path, sent, "{given:?}");
        }
    }

    #[test]
    fn locations_are_resolved() {
        let cases = [
            ("/new", "http://10.0.0.1:8080/new"),
            ("c?d#e", "http://10.0.0.1:8080/a/c?d"),
            ("../c", "http://10.0.0.1:8080/c"),
            ("/x/./y/../../../z/..", "http://10.0.0.1:8080/"),
            ("?q", "http://10.0.0.1:8080/a/b?q"),
            ("", "http://10.0.0.1:8080/a/b?x"),
            ("//other/p", "http://other/p"),
            ("https://10.0.0.1/p", "https://10.0.0.1/p"),
            ("HTTP://u:p@[::1]:81?q", "http://[::1]:81/?q"),
            ("/a:b", "http://10.0.0.1:8080/a:b"),
        ];
        for (location, leads_to) in cases {
            let joined = url("/a/b?x").join(location).map(|url| url.to_string());
            assert_eq!(joined.as_deref(), Ok(leads_to), "{location:?}");
        }
    }

    #[test]
    fn bad_locations_are_errors() {
        for location in [
            "ftp://10.0.0.1/",
            "http://",
            "http:///x",
            "http://a b/",
            "http://h:99999/",
            "http:opaque",
        ] {
            assert!(url("/").join(location).is_err(), "{location:?}");
        }
    }

    #[test]
    fn ports_and_schemes_do_not_make_another_host() {
        let from = url("/");
        assert!(from.same_host(&from.join("https://10.0.0.1:1/").expect("a URL")));
        assert!(!from.same_host(&from.join("http://10.0.0.2:8080/").expect("a URL")));
    }

    proptest::proptest! {
        #[test]
        fn any_path_and_location_make_one_request_line(path in ".{0,40}", location in "(http://|//|/|\\?|:)?.{0,40}") {
            let from = url(&path);
            for url in [Some(from.clone()), from.join(&location).ok()].into_iter().flatten() {
                proptest::prop_assert!(url.path.starts_with('/'));
                proptest::prop_assert!(url.path.bytes().all(|byte| byte.is_ascii_graphic()));
                proptest::prop_assert!(url.authority.bytes().all(|byte| byte.is_ascii_graphic()));
            }
        }
    }
}
