//! The query of a request.

use percent_encoding::percent_decode_str;

/// Names and values in their order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    /// What is not text is read as well as it can be.
    pub(crate) fn parse(query: &str) -> Self {
        let decode = |text: &str| {
            let spaced = text.replace('+', " ");
            percent_decode_str(&spaced).decode_utf8_lossy().into_owned()
        };
        let pairs = query.split('&').filter(|pair| !pair.is_empty());
        let split = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        Self(split.map(|(name, value)| (decode(name), decode(value))).collect())
    }

    /// The first value of a name that is not empty.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.all(name).find(|value| !value.is_empty())
    }

    pub(crate) fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        let named = self.0.iter().filter(move |(found, _)| found == name);
        named.map(|(_, value)| value.as_str())
    }

    pub(crate) fn flag(&self, name: &str) -> bool {
        matches!(self.text(name), Some("1" | "true" | "True" | "TRUE" | "t" | "T"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_decoded_and_keep_their_order() {
        let query = Query::parse("command=sh&command=-c&command=a+b%20%26%3D%ff&&tty=1&empty=");
        let command: Vec<_> = query.all("command").collect();
        assert_eq!(command, ["sh", "-c", "a b &=\u{fffd}"]);
        assert!(query.flag("tty") && !query.flag("stdin"));
        assert_eq!(query.text("empty"), None);
    }
}
