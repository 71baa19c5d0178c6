//! `WWW-Authenticate`: how a registry wants to be asked.

/// A way that we know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Challenge {
    Basic,
    Bearer {
        realm: String,
        service: Option<String>,
        scope: Option<String>,
    },
}

impl Challenge {
    /// The first of several header lines that we know; each has one challenge, as registries send it.
    pub(super) fn first<'a>(headers: impl IntoIterator<Item = &'a str>) -> Option<Self> {
        headers.into_iter().find_map(Self::parse)
    }

    fn parse(header: &str) -> Option<Self> {
        let (scheme, rest) = header.trim().split_once(' ').unwrap_or((header.trim(), ""));
        if scheme.eq_ignore_ascii_case("basic") {
            return Some(Self::Basic);
        }
        if !scheme.eq_ignore_ascii_case("bearer") {
            return None;
        }
        let (mut realm, mut service, mut scope) = (None, None, None);
        for (key, value) in Parameters(rest) {
            match key.to_ascii_lowercase().as_str() {
                "realm" => realm = Some(value),
                "service" => service = Some(value),
                "scope" => scope = Some(value),
                _ => {}
            }
        }
        Some(Self::Bearer {
            realm: realm?,
            service,
            scope,
        })
    }
}

/// `key="value",key=value`; a value in quotes may have commas and escapes.
struct Parameters<'a>(&'a str);

impl<'a> Iterator for Parameters<'a> {
    type Item = (&'a str, String);

    fn next(&mut self) -> Option<Self::Item> {
        let (key, rest) = self.0.trim_start_matches([',', ' ']).split_once('=')?;
        let Some(quoted) = rest.strip_prefix('"') else {
            let end = rest.find(',').unwrap_or(rest.len());
            self.0 = &rest[end..];
            return Some((key.trim(), rest[..end].trim().to_owned()));
        };
        let mut value = String::new();
        let mut chars = quoted.char_indices();
        while let Some((index, char)) = chars.next() {
            match char {
                '"' => {
                    self.0 = &quoted[index + 1..];
                    return Some((key.trim(), value));
                }
                '\\' => value.extend(chars.next().map(|(_, escaped)| escaped)),
                char => value.push(char),
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_registries_send() {
        let bearer = |realm: &str, service: Option<&str>, scope: Option<&str>| Challenge::Bearer {
            realm: realm.to_owned(),
            service: service.map(str::to_owned),
            scope: scope.map(str::to_owned),
        };
        for (header, expected) in [
            (r#"Basic realm="basic-realm""#, Some(Challenge::Basic)),
            ("basic", Some(Challenge::Basic)),
            (
                r#"Bearer realm="https://auth.example/token",service="s",scope="repository:a/b:pull,push""#,
                Some(bearer(
                    "https://auth.example/token",
                    Some("s"),
                    Some("repository:a/b:pull,push"),
                )),
            ),
            (
                r#"bearer Realm=https://x, service="a\"b""#,
                Some(bearer("https://x", Some("a\"b"), None)),
            ),
            (r#"Bearer service="s""#, None),
            (r#"Bearer realm="open"#, None),
            ("Negotiate", None),
            ("", None),
        ] {
            assert_eq!(Challenge::first([header]), expected, "{header}");
        }
        assert_eq!(Challenge::first(["Negotiate", "Basic"]), Some(Challenge::Basic));
    }
}
