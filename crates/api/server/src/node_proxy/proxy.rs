//! What a pod or a node serves itself, passed on: `pods/proxy`, `services/proxy` and `nodes/proxy`.
//!
//! `/api/v1/namespaces/NS/pods/web:8080/proxy/status?x=1` is `/status?x=1` at port 8080 of the pod. A name may begin with a
//! scheme, `https:web:8443`. A pod's address is what its node says: addresses of the server's own machine are refused, or
//! a node could send administrators to whatever listens there.

use std::net::IpAddr;

use http::Uri;
use http::header::LOCATION;
use percent_encoding::percent_decode_str;
use serde_json::Value;

use crate::registry::object::Object;
use crate::registry::resource::{ObjectPath, ResourceKind, Subresource};
use crate::rest::Body;
use crate::rest::status::{ApiError, StatusReason};

/// The port of a pod that names none.
const DEFAULT_PORT: u16 = 80;

/// A request for something behind a pod, a service or a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ProxyPath {
    /// Its name is as the path has it, with scheme and port: access rules name it so.
    pub(crate) object: ObjectPath,
    /// The path up to what is passed on.
    prefix: String,
    /// What is passed on, as it came.
    rest: String,
}

/// Where a request goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PodAddress {
    pub(crate) is_tls: bool,
    pub(crate) address: IpAddr,
    pub(crate) port: u16,
}

impl ProxyPath {
    /// Reads a path; `None` if it is none of a proxy.
    pub(crate) fn parse(path: &str) -> Option<Self> {
        let rest = path.strip_prefix("/api/v1/")?;
        let mut parts = rest.splitn(6, '/');
        let mut next = || parts.next();
        let (kind, namespace, name, found, tail) = match next()? {
            "namespaces" => {
                let namespace = Some(next()?);
                let kind = match next()? {
                    "pods" => ResourceKind::Pod,
                    "services" => ResourceKind::SERVICE,
                    _ => return None,
                };
                (kind, namespace, next()?, next()?, next())
            }
            "nodes" => {
                let (name, found) = (next()?, next()?);
                let taken = "nodes/".len() + name.len() + 1 + found.len();
                (ResourceKind::Node, None, name, found, rest.get(taken + 1..))
            }
            _ => return None,
        };
        if found != "proxy" || name.is_empty() {
            return None;
        }
        let decode = |text: &str| percent_decode_str(text).decode_utf8().ok().map(String::from);
        let tail = tail.unwrap_or_default();
        let prefix = path.strip_suffix(tail)?.trim_end_matches('/').to_owned();
        let namespace = match namespace {
            Some(namespace) => Some(decode(namespace).filter(|namespace| !namespace.contains('/'))?),
            None => None,
        };
        Some(Self {
            object: ObjectPath {
                endpoint: kind.storage(),
                namespace,
                name: Some(decode(name).filter(|name| !name.contains('/'))?),
                subresource: Some(Subresource::Proxy),
            },
            prefix,
            rest: format!("/{tail}"),
        })
    }

    /// Scheme, name and port, the last two as they came.
    fn parts(&self) -> (&str, &str, &str) {
        let name = self.object.name.as_deref().unwrap_or_default();
        match *name.split(':').collect::<Vec<_>>().as_slice() {
            [scheme, name, port] => (scheme, name, port),
            [name, port] => ("", name, port),
            _ => ("", name, ""),
        }
    }

    /// The port as it came; empty if none did.
    pub(super) fn port(&self) -> &str {
        self.parts().2
    }

    /// The pod, service or node itself.
    pub(crate) fn target(&self) -> ObjectPath {
        let (_, name, _) = self.parts();
        ObjectPath {
            name: Some(name.to_owned()),
            subresource: None,
            ..self.object.clone()
        }
    }

    pub(crate) fn is_node(&self) -> bool {
        self.object.endpoint.kind == ResourceKind::Node
    }

    pub(crate) fn is_service(&self) -> bool {
        self.object.endpoint.kind == ResourceKind::SERVICE
    }

    /// Path and query as the other side gets them.
    pub(crate) fn passed_on(&self, query: Option<&str>) -> String {
        match query {
            Some(query) => format!("{}?{query}", self.rest),
            None => self.rest.clone(),
        }
    }

    /// Whether a node may be asked: only its own endpoint is, which is where its `Node` says.
    pub(crate) fn check_node(&self, node: &Object) -> Result<(), ApiError> {
        let (scheme, _, port) = self.parts();
        let own = node
            .value()
            .pointer("/status/daemonEndpoints/kubeletEndpoint/Port");
        let own = own.and_then(Value::as_u64).unwrap_or(10250).to_string();
        if matches!(scheme, "" | "https") && (port.is_empty() || port == own) {
            return Ok(());
        }
        Err(ApiError::bad_request(format!(
            "only the node's own endpoint can be asked, https at port {own}: leave scheme and port out"
        )))
    }

    /// Where a pod is asked.
    pub(crate) fn pod_address(&self, pod: &Object) -> Result<PodAddress, ApiError> {
        let port = match self.port() {
            "" => first_port(pod),
            port => named_port(pod, port)
                .ok_or_else(|| ApiError::bad_request(format!("invalid pod request: port {port:?}")))?,
        };
        self.address_at(pod, port)
    }

    /// Where a pod is asked at this port.
    pub(super) fn address_at(&self, pod: &Object, port: u16) -> Result<PodAddress, ApiError> {
        let is_tls = match self.parts().0 {
            "" | "http" => false,
            "https" => true,
            other => {
                return Err(ApiError::bad_request(format!(
                    "invalid pod request: scheme {other:?}"
                )));
            }
        };
        let address: IpAddr = pod.text("/status/podIP").parse().map_err(|_| {
            let why = format!("pod {:?} has no address yet", pod.name());
            ApiError::new(StatusReason::ServiceUnavailable, why)
        })?;
        if !may_be_asked(address) {
            return Err(ApiError::bad_request("address not allowed"));
        }
        Ok(PodAddress {
            is_tls,
            address,
            port,
        })
    }

    /// Makes a redirect within the other side one within the proxy; false if it leads elsewhere.
    pub(crate) fn rewrite(&self, answer: &mut http::Response<Body>, host: &str) -> bool {
        let Some(location) = answer.headers().get(LOCATION) else {
            return true;
        };
        let Some(uri) = location.to_str().ok().and_then(|text| text.parse::<Uri>().ok()) else {
            return false;
        };
        if uri
            .authority()
            .is_some_and(|authority| authority.as_str() != host)
        {
            return false;
        }
        let Some(path) = uri.path_and_query() else {
            return false;
        };
        match http::HeaderValue::from_str(&format!("{}{path}", self.prefix)) {
            Ok(value) => {
                answer.headers_mut().insert(LOCATION, value);
                true
            }
            Err(_) => false,
        }
    }
}

/// Addresses of the server's own machine, and such that mean no single machine, are not a pod's.
fn may_be_asked(address: IpAddr) -> bool {
    let is_local = match address {
        IpAddr::V4(v4) => v4.is_link_local() || v4.is_broadcast(),
        IpAddr::V6(v6) => {
            v6.is_unicast_link_local() || v6.to_ipv4_mapped().is_some_and(|v4| !may_be_asked(v4.into()))
        }
    };
    !(is_local || address.is_loopback() || address.is_unspecified() || address.is_multicast())
}

fn ports(pod: &Object) -> impl Iterator<Item = &Value> {
    let containers = pod.value().pointer("/spec/containers").and_then(Value::as_array);
    let containers = containers.into_iter().flatten();
    containers.flat_map(|container| container["ports"].as_array().into_iter().flatten())
}

fn first_port(pod: &Object) -> u16 {
    let first = ports(pod).next().and_then(|port| port["containerPort"].as_u64());
    first
        .and_then(|port| u16::try_from(port).ok())
        .unwrap_or(DEFAULT_PORT)
}

pub(super) fn named_port(pod: &Object, port: &str) -> Option<u16> {
    let number = port.parse().ok().or_else(|| {
        let found = ports(pod).find(|candidate| candidate["name"] == port)?;
        u16::try_from(found["containerPort"].as_u64()?).ok()
    });
    number.filter(|port| *port > 0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(address: &str) -> Object {
        let containers = json!([{"name": "app", "ports": [{"name": "web", "containerPort": 8080}]}]);
        let status = json!({"podIP": address});
        Object::new(json!({"metadata": {"name": "p"}, "spec": {"containers": containers}, "status": status}))
            .unwrap()
    }

    #[test]
    fn a_path_names_a_pod_a_port_and_what_is_passed_on() {
        let path = ProxyPath::parse("/api/v1/namespaces/a/pods/https:web:8443/proxy/x%2Fy/").unwrap();
        assert_eq!(path.object.name.as_deref(), Some("https:web:8443"));
        assert_eq!(path.target().name.as_deref(), Some("web"));
        assert_eq!(path.passed_on(Some("q=1")), "/x%2Fy/?q=1");
        assert_eq!(path.prefix, "/api/v1/namespaces/a/pods/https:web:8443/proxy");
        let node = ProxyPath::parse("/api/v1/nodes/n1/proxy/logs/a/b/c/d/e").unwrap();
        assert!(node.is_node());
        assert_eq!(node.passed_on(None), "/logs/a/b/c/d/e");
        assert_eq!(
            ProxyPath::parse("/api/v1/nodes/n1/proxy")
                .unwrap()
                .passed_on(None),
            "/"
        );
        for path in [
            "/api/v1/nodes/n1/status",
            "/api/v1/namespaces/a/secrets/s/proxy/",
            "/api/v1/namespaces/a/services/s/status",
            "/api/v1/nodes//proxy/",
        ] {
            assert_eq!(ProxyPath::parse(path), None, "{path}");
        }
    }

    #[test]
    fn pods_are_asked_at_their_own_address_only() {
        let at = |name: &str, address: &str| {
            let path = ProxyPath::parse(&format!("/api/v1/namespaces/a/pods/{name}/proxy/")).unwrap();
            path.pod_address(&pod(address))
                .map(|address| (address.is_tls, address.port))
                .ok()
        };
        assert_eq!(at("p", "10.0.0.9"), Some((false, 8080)));
        assert_eq!(at("p:web", "fd00::1"), Some((false, 8080)));
        assert_eq!(at("https:p:1", "10.0.0.9"), Some((true, 1)));
        for (name, address) in [
            ("p", "127.0.0.1"),
            ("p", "::ffff:127.0.0.1"),
            ("p", "169.254.169.254"),
            ("p", "0.0.0.0"),
            ("p", ""),
            ("p:0", "10.0.0.9"),
            ("p:none", "10.0.0.9"),
            ("ftp:p:1", "10.0.0.9"),
        ] {
            assert_eq!(at(name, address), None, "{name} {address}");
        }
    }
}
