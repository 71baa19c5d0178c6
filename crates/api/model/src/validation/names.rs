//! The small grammars: names, labels, ports, environment variables, paths.
//!
//! Each function returns every complaint about a value, in upstream's words and order; an empty list is
//! approval. No regular expressions: the alphabets are ASCII and the checks run for every name of every Pod.

const LABEL_FORMAT: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
const LABEL_MAX_BYTES: usize = 63;
const SUBDOMAIN_FORMAT: &str = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*";
const SUBDOMAIN_MAX_BYTES: usize = 253;
const QUALIFIED_NAME_FORMAT: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";
const QUALIFIED_NAME_RULE: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character";
const PORT_NAME_MAX_BYTES: usize = 15;

fn too_long(max: usize) -> String {
    format!("must be no more than {max} characters")
}

/// Upstream has two words for the same: labels have bytes.
fn too_many_bytes(max: usize) -> String {
    format!("must be no more than {max} bytes")
}

fn inclusive_range(low: i64, high: i64) -> String {
    format!("must be between {low} and {high}, inclusive")
}

/// The sentence that names a rule, examples and the pattern. The double space before "or" is upstream's.
fn pattern_error(rule: &str, format: &str, examples: &[&str]) -> String {
    let quoted: Vec<String> = examples.iter().map(|example| format!("'{example}'")).collect();
    let examples = quoted.join(",  or ");
    format!("{rule} (e.g. {examples}, regex used for validation is '{format}')")
}

fn is_lower_alphanumeric(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit()
}

fn matches_label(value: &str) -> bool {
    delimited(value, is_lower_alphanumeric, |byte| byte == b'-')
}

fn matches_subdomain(value: &str) -> bool {
    value.split('.').all(matches_label)
}

/// Non-empty, starts and ends with an `edge` byte, has only `edge` and `inner` bytes.
fn delimited(value: &str, edge: impl Fn(u8) -> bool, inner: impl Fn(u8) -> bool) -> bool {
    let bytes = value.as_bytes();
    match (bytes.first(), bytes.last()) {
        (Some(&first), Some(&last)) => {
            edge(first) && edge(last) && bytes.iter().all(|&byte| edge(byte) || inner(byte))
        }
        _ => false,
    }
}

fn matches_qualified_name(value: &str) -> bool {
    delimited(
        value,
        |byte| byte.is_ascii_alphanumeric(),
        |byte| matches!(byte, b'-' | b'_' | b'.'),
    )
}

pub(super) fn dns_label(value: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if value.len() > LABEL_MAX_BYTES {
        errors.push(too_long(LABEL_MAX_BYTES));
    }
    if !matches_label(value) {
        errors.push(if matches_subdomain(value) {
            "must not contain dots".to_owned()
        } else {
            pattern_error(
                "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start \
                 and end with an alphanumeric character",
                LABEL_FORMAT,
                &["my-name", "123-abc"],
            )
        });
    }
    errors
}

/// What can be a part of a path.
pub(super) fn path_segment(value: &str) -> Vec<String> {
    match value {
        "." => vec!["may not be '.'".to_owned()],
        ".." => vec!["may not be '..'".to_owned()],
        _ => ['/', '%']
            .into_iter()
            .filter(|character| value.contains(*character))
            .map(|character| format!("may not contain '{character}'"))
            .collect(),
    }
}

pub(super) fn dns_subdomain(value: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if value.len() > SUBDOMAIN_MAX_BYTES {
        errors.push(too_long(SUBDOMAIN_MAX_BYTES));
    }
    if !matches_subdomain(value) {
        errors.push(pattern_error(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must \
             start and end with an alphanumeric character",
            SUBDOMAIN_FORMAT,
            &["example.com"],
        ));
    }
    errors
}

/// As [`dns_subdomain`], in the words of upstream's newer checks.
pub(super) fn long_name(value: &str) -> Vec<String> {
    let mut errors = dns_subdomain(value);
    if value.len() > SUBDOMAIN_MAX_BYTES {
        errors[0] = too_many_bytes(SUBDOMAIN_MAX_BYTES);
    }
    errors
}

/// A DNS search path: a subdomain in which underscores are allowed.
pub(super) fn dns_subdomain_with_underscore(value: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if value.len() > SUBDOMAIN_MAX_BYTES {
        errors.push(too_long(SUBDOMAIN_MAX_BYTES));
    }
    let segment = |part: &str| {
        delimited(
            part,
            |byte| is_lower_alphanumeric(byte) || byte == b'_',
            |byte| byte == b'-',
        )
    };
    if !value.split('.').all(segment) {
        errors.push(pattern_error(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '_', '-' or '.', and \
             must start and end with an alphanumeric character",
            r"[a-z0-9_]([-_a-z0-9]*[a-z0-9_])?(\.[a-z0-9_]([-_a-z0-9]*[a-z0-9_])?)*",
            &["example.com"],
        ));
    }
    errors
}

/// A name that will get a suffix: a trailing dash is fine.
pub(super) fn dns_subdomain_prefix(value: &str) -> Vec<String> {
    dns_subdomain(&with_suffix(value))
}

/// A prefix as it could become a name.
pub(super) fn with_suffix(prefix: &str) -> String {
    match prefix.strip_suffix('-') {
        Some(stem) => format!("{stem}a"),
        None => prefix.to_owned(),
    }
}

pub(super) fn qualified_name(value: &str) -> Vec<String> {
    let mut errors = Vec::new();
    let rule = || {
        pattern_error(
            QUALIFIED_NAME_RULE,
            QUALIFIED_NAME_FORMAT,
            &["MyName", "my.name", "123-abc"],
        )
    };
    let parts: Vec<&str> = value.split('/').collect();
    let name = match parts[..] {
        [name] => name,
        [prefix, name] => {
            if prefix.is_empty() {
                errors.push("prefix part must be non-empty".to_owned());
            } else {
                let complaints = long_name(prefix).into_iter();
                errors.extend(complaints.map(|complaint| format!("prefix part {complaint}")));
            }
            name
        }
        _ => {
            errors.push(format!(
                "a valid label key {} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')",
                rule()
            ));
            return errors;
        }
    };
    if name.is_empty() {
        errors.push("name part must be non-empty".to_owned());
    } else if name.len() > LABEL_MAX_BYTES {
        errors.push(format!("name part {}", too_many_bytes(LABEL_MAX_BYTES)));
    }
    if !matches_qualified_name(name) {
        errors.push(format!("name part {}", rule()));
    }
    errors
}

pub(super) fn label_value(value: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if value.len() > LABEL_MAX_BYTES {
        errors.push(too_many_bytes(LABEL_MAX_BYTES));
    }
    if !value.is_empty() && !matches_qualified_name(value) {
        errors.push(pattern_error(
            "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must \
             start and end with an alphanumeric character",
            "(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?",
            &["MyValue", "my_value", "12345"],
        ));
    }
    errors
}

pub(super) fn port_number(value: i32) -> Vec<String> {
    if (1..=65535).contains(&value) {
        Vec::new()
    } else {
        vec![inclusive_range(1, 65535)]
    }
}

pub(super) fn port_name(value: &str) -> Vec<String> {
    let mut errors = Vec::new();
    let bytes = value.as_bytes();
    if bytes.len() > PORT_NAME_MAX_BYTES {
        errors.push(too_long(PORT_NAME_MAX_BYTES));
    }
    if bytes.is_empty()
        || !bytes
            .iter()
            .all(|&byte| is_lower_alphanumeric(byte) || byte == b'-')
    {
        errors.push("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".to_owned());
    }
    if !bytes.iter().any(u8::is_ascii_lowercase) {
        errors.push("must contain at least one letter (a-z)".to_owned());
    }
    if value.contains("--") {
        errors.push("must not contain consecutive hyphens".to_owned());
    }
    if value.starts_with('-') || value.ends_with('-') {
        errors.push("must not begin or end with a hyphen".to_owned());
    }
    errors
}

/// Any printable ASCII except `=`.
pub(super) fn env_var_name(value: &str) -> Vec<String> {
    let printable = |byte: u8| (b' '..=b'~').contains(&byte) && byte != b'=';
    if value.bytes().all(printable) {
        Vec::new()
    } else {
        vec![
            "a valid environment variable name must consist only of printable ASCII characters other than '='"
                .to_owned(),
        ]
    }
}

pub(super) fn config_map_key(value: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if value.len() > SUBDOMAIN_MAX_BYTES {
        errors.push(too_long(SUBDOMAIN_MAX_BYTES));
    }
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    if value.is_empty() || !value.bytes().all(allowed) {
        errors.push(pattern_error(
            "a valid config key must consist of alphanumeric characters, '-', '_' or '.'",
            "[-._a-zA-Z0-9]+",
            &["key.name", "KEY_NAME", "key-name"],
        ));
    }
    if value == "." {
        errors.push("must not be '.'".to_owned());
    } else if value == ".." {
        errors.push("must not be '..'".to_owned());
    } else if value.starts_with("..") {
        errors.push("must not start with '..'".to_owned());
    }
    errors
}

pub(super) fn http_header_name(value: &str) -> Vec<String> {
    if !value.is_empty()
        && value
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    {
        return Vec::new();
    }
    vec![pattern_error(
        "a valid HTTP header must consist of alphanumeric characters or '-'",
        "[-A-Za-z0-9]+",
        &["X-Header-Name"],
    )]
}

/// A share of something, as `25%`.
pub(super) fn percentage(value: &str) -> Vec<String> {
    let digits = value.strip_suffix('%').unwrap_or_default();
    if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Vec::new();
    }
    vec![pattern_error(
        "a valid percent string must be a numeric string followed by an ending '%'",
        "[0-9]+%",
        &["1%", "93%"],
    )]
}

/// The characters of a path in a URL.
pub(super) fn is_http_path(value: &str) -> bool {
    const PUNCTUATION: &[u8] = b"/-._~%!$&'()*+,;=:";
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || PUNCTUATION.contains(&byte);
    !value.is_empty() && value.bytes().all(allowed)
}

/// An address without port or zone; leading zeros in IPv4 are not tolerated.
pub(super) fn ip_address(value: &str) -> Vec<String> {
    if value.parse::<std::net::IpAddr>().is_ok() {
        Vec::new()
    } else {
        vec!["must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)".to_owned()]
    }
}

/// User and group ids of Linux, without the sign bit.
pub(super) fn user_or_group_id(value: i64) -> Vec<String> {
    let max = i64::from(i32::MAX);
    if (0..=max).contains(&value) {
        Vec::new()
    } else {
        vec![inclusive_range(0, max)]
    }
}

/// `1 <= value <= i32::MAX`, for seconds that become a 32-bit timer upstream.
pub(super) fn positive_i32_range(value: i64, low: i64) -> Option<String> {
    let max = i64::from(i32::MAX);
    (!(low..=max).contains(&value)).then(|| inclusive_range(low, max))
}

/// A sysctl name, written with dots or slashes.
pub(super) fn is_sysctl_name(value: &str) -> bool {
    let segment = |part: &str| delimited(part, is_lower_alphanumeric, |byte| matches!(byte, b'-' | b'_'));
    value.len() <= SUBDOMAIN_MAX_BYTES && value.split(['.', '/']).all(segment)
}

/// A path that stays below where it starts: relative and without `..`.
pub(super) fn local_descending_path(value: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if value.starts_with('/') {
        errors.push("must be a relative path".to_owned());
    }
    errors.extend(no_backsteps(value));
    errors
}

pub(super) fn no_backsteps(value: &str) -> Option<String> {
    value
        .split('/')
        .any(|part| part == "..")
        .then(|| "must not contain '..'".to_owned())
}

/// Like [`local_descending_path`], and nothing that starts with `..`, which volume plugins use themselves.
pub(super) fn local_non_reserved_path(value: &str) -> Vec<String> {
    let mut errors = local_descending_path(value);
    if value.starts_with("..") && !value.starts_with("../") {
        errors.push("must not start with '..'".to_owned());
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels() {
        assert_eq!(dns_label("a-1"), Vec::<String>::new());
        assert_eq!(dns_label("a.b"), ["must not contain dots"]);
        assert_eq!(dns_label("-a").len(), 1);
        assert_eq!(dns_label(&"x".repeat(64)), ["must be no more than 63 characters"]);
    }

    #[test]
    fn qualified_names() {
        for good in ["a", "example.com/My_Name", "A.b-c"] {
            assert_eq!(qualified_name(good), Vec::<String>::new(), "{good}");
        }
        for bad in ["", "/a", "a/", "a/b/c", "-a", "Ex.com/a", "é"] {
            assert!(!qualified_name(bad).is_empty(), "{bad}");
        }
    }

    #[test]
    fn port_names_collect_every_complaint() {
        assert_eq!(port_name("http"), Vec::<String>::new());
        assert_eq!(port_name("").len(), 2);
        assert_eq!(port_name("-8--8-").len(), 3);
    }

    #[test]
    fn paths() {
        assert!(local_non_reserved_path("a/b").is_empty());
        assert_eq!(local_non_reserved_path("..data"), ["must not start with '..'"]);
        assert_eq!(local_non_reserved_path("/a/../b").len(), 2);
        assert!(!is_sysctl_name("net..core"));
        assert!(is_sysctl_name("net/ipv4.ip_forward"));
    }
}
