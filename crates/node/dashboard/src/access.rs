//! Who may ask: whoever came by the one-time secret, from a browser that then has the cookie, at our own address.
//!
//! A name that leads here (DNS rebinding), a page of another origin, a form of another site and a second use of the secret
//! are all refused before a route is looked at.

use std::sync::{Mutex, PoisonError};

use hyper::header::{COOKIE, HOST, HeaderName, ORIGIN};
use hyper::http::request::Parts;
use hyper::{Method, StatusCode};

/// Bytes of randomness in the secret and in the cookie.
const TOKEN_BYTES: usize = 16;
/// What browsers say about who asks.
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Something that cannot be guessed.
#[derive(Clone)]
struct Token(String);

impl Token {
    fn new() -> Self {
        let mut bytes = [0; TOKEN_BYTES];
        rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
            .expect("the kernel gives a few random bytes");
        Self(format!("{:032x}", u128::from_be_bytes(bytes)))
    }

    /// Compares without saying by its time how much was right.
    fn is(&self, text: &str) -> bool {
        let pairs = self.0.bytes().zip(text.bytes());
        self.0.len() == text.len() && pairs.fold(0, |all, (a, b)| all | (a ^ b)) == 0
    }
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token")
    }
}

/// What is said about a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Judgement {
    /// The browser has the cookie.
    Granted,
    /// It came by the secret: this cookie is what it has from now on.
    Admitted { cookie: String },
    Refused {
        status: StatusCode,
        message: &'static str,
    },
}

#[derive(Debug)]
pub(crate) struct Access {
    /// The names that this server has.
    hosts: Vec<String>,
    cookie_name: String,
    /// `None` once it was used.
    secret: Mutex<Option<Token>>,
    session: Token,
}

impl Access {
    /// For a server on a loopback port.
    pub(crate) fn new(port: u16) -> Self {
        Self {
            hosts: vec![
                format!("127.0.0.1:{port}"),
                format!("localhost:{port}"),
                format!("[::1]:{port}"),
            ],
            // Cookies do not know ports, so those of two dashboards need two names.
            cookie_name: format!("pulselet-dashboard-{port}"),
            secret: Mutex::new(Some(Token::new())),
            session: Token::new(),
        }
    }

    /// What the address ends with, as long as nobody has used it.
    pub(crate) fn secret(&self) -> Option<String> {
        let secret = self.secret.lock().unwrap_or_else(PoisonError::into_inner);
        secret.as_ref().map(|token| token.0.clone())
    }

    /// `secret` is what the request's address has.
    pub(crate) fn judge(&self, request: &Parts, secret: Option<&str>) -> Judgement {
        let header = |name: HeaderName| {
            request
                .headers
                .get(name)
                .map(|value| value.to_str().unwrap_or(""))
        };
        let host = header(HOST).unwrap_or("");
        if !self.hosts.iter().any(|own| own == host) {
            let message = "This name does not belong to the dashboard: use the address that it printed.\n";
            return refused(StatusCode::MISDIRECTED_REQUEST, message);
        }
        let is_own = |origin: &str| origin.strip_prefix("http://") == Some(host);
        let needs_origin = request.method != Method::GET;
        if header(ORIGIN).map_or(needs_origin, |origin| !is_own(origin)) {
            return refused(StatusCode::FORBIDDEN, "Another page may not use the dashboard.\n");
        }
        if request.uri.path() == "/"
            && let Some(secret) = secret
            && self.use_up(secret)
        {
            let (name, value) = (&self.cookie_name, &self.session.0);
            let cookie = format!("{name}={value}; Path=/; HttpOnly; SameSite=Strict");
            return Judgement::Admitted { cookie };
        }
        if !matches!(header(SEC_FETCH_SITE), None | Some("same-origin" | "none")) {
            return refused(StatusCode::FORBIDDEN, "Another site may not use the dashboard.\n");
        }
        if self.has_cookie(request) {
            return Judgement::Granted;
        }
        let message = "Open the address that `pulselet dashboard` printed. It works once: for another browser, start another \
                       dashboard.\n";
        refused(StatusCode::FORBIDDEN, message)
    }

    /// Whether it is the secret, which nobody can use again then.
    fn use_up(&self, text: &str) -> bool {
        let mut secret = self.secret.lock().unwrap_or_else(PoisonError::into_inner);
        secret.take_if(|token| token.is(text)).is_some()
    }

    fn has_cookie(&self, request: &Parts) -> bool {
        let headers = request.headers.get_all(COOKIE).iter();
        let cookies = headers.filter_map(|value| value.to_str().ok());
        let mut pairs = cookies
            .flat_map(|text| text.split(';'))
            .filter_map(|pair| pair.trim().split_once('='));
        pairs.any(|(name, value)| name == self.cookie_name && self.session.is(value))
    }
}

fn refused(status: StatusCode, message: &'static str) -> Judgement {
    Judgement::Refused { status, message }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PORT: u16 = 4321;

    fn judge(access: &Access, method: Method, headers: &[(&str, &str)], secret: Option<&str>) -> Judgement {
        let mut request = hyper::Request::builder().method(method).uri("/");
        if !headers.iter().any(|(name, _)| *name == "host") {
            request = request.header("host", "127.0.0.1:4321");
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (parts, ()) = request.body(()).unwrap().into_parts();
        access.judge(&parts, secret)
    }

    fn is_refused(judgement: &Judgement) -> bool {
        matches!(judgement, Judgement::Refused { .. })
    }

    /// The value of the cookie that the secret gives.
    fn enter(access: &Access) -> String {
        let secret = access.secret().unwrap();
        let Judgement::Admitted { cookie } = judge(access, Method::GET, &[], Some(&secret)) else {
            panic!("the secret opens");
        };
        assert!(
            cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"),
            "{cookie}"
        );
        cookie.split(';').next().unwrap().to_owned()
    }

    #[test]
    fn the_secret_works_once_and_the_cookie_from_then_on() {
        let access = Access::new(PORT);
        assert!(is_refused(&judge(&access, Method::GET, &[], None)));
        assert!(is_refused(&judge(&access, Method::GET, &[], Some("guessed"))));
        let secret = access.secret().unwrap();
        let cookie = enter(&access);
        assert_eq!(access.secret(), None);
        assert!(is_refused(&judge(&access, Method::GET, &[], Some(&secret))));
        for _ in 0..2 {
            let with_cookie = judge(
                &access,
                Method::GET,
                &[("cookie", &format!("a=b; {cookie}"))],
                None,
            );
            assert_eq!(with_cookie, Judgement::Granted);
        }
        let wrong = format!("{cookie}0");
        assert!(is_refused(&judge(
            &access,
            Method::GET,
            &[("cookie", &wrong)],
            None
        )));
    }

    #[test]
    fn other_names_origins_and_sites_are_refused_whatever_they_have() {
        let access = Access::new(PORT);
        let secret = access.secret().unwrap();
        for host in [
            "example.com",
            "127.0.0.1",
            "127.0.0.1:80",
            "localhost.example.com:4321",
            "",
        ] {
            let with_secret = judge(&access, Method::GET, &[("host", host)], Some(&secret));
            assert!(is_refused(&with_secret), "{host}");
        }
        let cookie = enter(&access);
        let own = "http://127.0.0.1:4321";
        for (method, headers, fits) in [
            (Method::GET, vec![("origin", own)], true),
            (Method::GET, vec![("origin", "http://localhost:4321")], false),
            (Method::GET, vec![("origin", "https://127.0.0.1:4321")], false),
            (Method::GET, vec![("origin", "null")], false),
            (Method::GET, vec![("sec-fetch-site", "cross-site")], false),
            (Method::GET, vec![("sec-fetch-site", "same-site")], false),
            (Method::GET, vec![("sec-fetch-site", "same-origin")], true),
            (Method::GET, vec![("sec-fetch-site", "none")], true),
            (Method::POST, vec![("origin", own)], true),
            (Method::POST, vec![], false),
        ] {
            let mut all = headers.clone();
            all.push(("cookie", &cookie));
            let judgement = judge(&access, method, &all, None);
            assert_eq!(!is_refused(&judgement), fits, "{headers:?}");
        }
    }
}
