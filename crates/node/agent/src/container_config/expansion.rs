//! `$(VAR)` in commands, arguments and environment values.
//!
//! As in Kubernetes: a reference to an unknown variable stays as it is, `$$` is a literal `$`, and what was put in is
//! not looked at again.

/// Replaces every reference to a variable that `lookup` knows.
pub(super) fn expand<'a>(text: &str, lookup: impl Fn(&str) -> Option<&'a str>) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(dollar) = rest.find('$') {
        out.push_str(&rest[..dollar]);
        rest = &rest[dollar + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            out.push('$');
            rest = after;
        } else if let Some((name, after)) = rest.strip_prefix('(').and_then(|inner| inner.split_once(')')) {
            if let Some(value) = lookup(name) {
                out.push_str(value);
            } else {
                out.extend(["$(", name, ")"]);
            }
            rest = after;
        } else {
            out.push('$');
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_replaced_once() {
        let lookup = |name: &str| match name {
            "A" => Some("1"),
            "B" => Some("$(A)"),
            "EMPTY" => Some(""),
            _ => None,
        };
        let cases = [
            ("plain", "plain"),
            ("$(A)", "1"),
            ("x$(A)y$(A)", "x1y1"),
            ("$(B)", "$(A)"),
            ("$(EMPTY)", ""),
            ("$(NONE)", "$(NONE)"),
            ("$$(A)", "$(A)"),
            ("$$$(A)", "$1"),
            ("$A", "$A"),
            ("100$", "100$"),
            ("$(A", "$(A"),
            ("$()", "$()"),
            ("ü$(A)ß", "ü1ß"),
        ];
        for (text, expected) in cases {
            assert_eq!(expand(text, lookup), expected, "{text}");
        }
    }
}
