//! Callers whom no certificate of ours names: the API says who they are and what they may ask.

use std::collections::BTreeMap;
use std::fmt;

use futures_util::future::BoxFuture;
use hyper::Method;

/// Somebody who asks, as the API knows them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct NodeCaller {
    pub user: String,
    pub uid: String,
    pub groups: Vec<String>,
    pub extra: BTreeMap<String, Vec<String>>,
}

/// Asks the API about callers.
pub trait CallerReview: fmt::Debug + Send + Sync {
    /// Who shows a bearer token; `None` if it does not count, or if the API does not say.
    fn identify<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Option<NodeCaller>>;

    /// Whether a caller may do something with a part of this node.
    fn allows<'a>(&'a self, caller: &'a NodeCaller, verb: &'a str, part: &'a str) -> BoxFuture<'a, bool>;
}

/// The verb of a request, in the words of access rules.
pub(crate) fn verb(method: &Method) -> &'static str {
    match *method {
        Method::GET | Method::HEAD => "get",
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "",
    }
}

/// The parts of a node that a path is about: whoever may have one of them may ask.
pub(crate) fn parts(path: &str) -> &'static [&'static str] {
    let first = path.split('/').nth(1).unwrap_or_default();
    match first {
        "stats" => &["stats"],
        "metrics" => &["metrics"],
        "logs" => &["log"],
        "pods" | "runningpods" => &["pods", "proxy"],
        "healthz" => &["healthz", "proxy"],
        _ => &["proxy"],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_parts_of_a_node_as_a_kubelet_has_them() {
        assert_eq!(parts("/metrics/cadvisor"), ["metrics"]);
        assert_eq!(parts("/stats/summary"), ["stats"]);
        assert_eq!(parts("/pods"), ["pods", "proxy"]);
        assert_eq!(parts("/exec/ns/pod/c"), ["proxy"]);
        assert_eq!(parts(""), ["proxy"]);
        assert_eq!((verb(&Method::POST), verb(&Method::GET)), ("create", "get"));
    }
}
