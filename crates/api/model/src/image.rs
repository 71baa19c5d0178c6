//! Image references, as far as admission needs them: which tag an image has.

/// The tag of an image: as written, `latest` if there is neither tag nor digest, `None` if there is only a digest
/// or the text is no image reference at all.
pub fn tag(image: &str) -> Option<&str> {
    let (name, digest) = match image.split_once('@') {
        Some((name, digest)) if is_digest(digest) => (name, Some(digest)),
        Some(_) => return None,
        None => (image, None),
    };
    let after_slash = name.rfind('/').map_or(0, |index| index + 1);
    let (repository, tag) = match name[after_slash..].find(':') {
        Some(index) => (
            &name[..after_slash + index],
            Some(&name[after_slash + index + 1..]),
        ),
        None => (name, None),
    };
    if !is_repository(repository) || !tag.is_none_or(is_tag) {
        return None;
    }
    match (tag, digest) {
        (Some(tag), _) => Some(tag),
        (None, Some(_)) => None,
        (None, None) => Some("latest"),
    }
}

fn is_repository(repository: &str) -> bool {
    let path = match repository.split_once('/') {
        Some((domain, path)) if is_domain(domain) => path,
        _ => repository,
    };
    path.split('/').all(is_path_component)
}

/// The first part is a registry if it looks like a host rather than like a directory.
fn is_domain(first: &str) -> bool {
    let (host, port) = first.split_once(':').unwrap_or((first, "0"));
    let host_like =
        first.contains(['.', ':']) || first == "localhost" || first.bytes().any(|b| b.is_ascii_uppercase());
    host_like
        && !host.is_empty()
        && host
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'[' | b']'))
        && port.bytes().all(|byte| byte.is_ascii_digit())
}

/// Lower-case words joined by a dot, one or two underscores, or any number of dashes.
fn is_path_component(part: &str) -> bool {
    let word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = part.as_bytes();
    if !bytes.first().copied().is_some_and(word) || !bytes.last().copied().is_some_and(word) {
        return false;
    }
    bytes.split(|&byte| word(byte)).all(|separator| match separator {
        [] | [b'.' | b'_'] | [b'_', b'_'] => true,
        dashes => dashes.iter().all(|&byte| byte == b'-'),
    })
}

fn is_tag(tag: &str) -> bool {
    let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    tag.len() <= 128
        && tag.bytes().next().is_some_and(word)
        && tag.bytes().all(|byte| word(byte) || matches!(byte, b'.' | b'-'))
}

fn is_digest(digest: &str) -> bool {
    digest.split_once(':').is_some_and(|(algorithm, hex)| {
        algorithm.starts_with(|c: char| c.is_ascii_alphabetic())
            && hex.len() >= 32
            && hex.bytes().all(|byte| byte.is_ascii_hexdigit())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_found_where_they_are() {
        let digest = "0".repeat(64);
        for (image, expected) in [
            ("nginx", Some("latest")),
            ("nginx:1.25", Some("1.25")),
            ("localhost:5000/app", Some("latest")),
            ("registry.test:5000/team/app:v1", Some("v1")),
            (&format!("app@sha256:{digest}"), None),
            (&format!("app:v2@sha256:{digest}"), Some("v2")),
            ("Nginx", None),
            ("a//b", None),
            ("nginx:", None),
            ("a___b", None),
            ("a--b__c.d", Some("latest")),
            ("", None),
        ] {
            assert_eq!(tag(image), expected, "{image}");
        }
    }
}
