//! What probes and hooks ask, and where: handlers with their ports resolved to numbers.
//!
//! Which handler of a manifest counts is decided here and nowhere else. A pod's address is not known when its manifest is
//! converted, so a target without a host of its own is at the pod's address, which the node fills in.

use pulselet_engine::plan::{Handler, HookPlan};
use pulselet_engine::time::Span;
use pulselet_model::{Container, ExecAction, HttpGetAction, IntOrString, LifecycleHandler, Probe};

/// What a probe asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeTarget {
    /// A command inside the container.
    Exec(Box<[String]>),
    Http(HttpTarget),
    Tcp(HostPort),
    /// Always at the pod's address; an empty service asks for the server as a whole.
    Grpc {
        port: u16,
        service: Box<str>,
    },
    /// Something that cannot be asked, such as a port name that the container does not have.
    Impossible {
        handler: Handler,
        why: Box<str>,
    },
}

/// What a hook does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HookTarget {
    /// A command inside the container.
    Exec(Box<[String]>),
    Http(HttpTarget),
    /// The engine waits by itself.
    Sleep(Span),
    /// Accepted by the API and never carried out: a connection, as upstream, or a port that is not there.
    Impossible(Box<str>),
}

/// A GET request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpTarget {
    pub scheme: HttpScheme,
    pub at: HostPort,
    /// As in the manifest: it may carry a query.
    pub path: Box<str>,
    /// Names and values, in the order of the manifest.
    pub headers: Box<[(Box<str>, Box<str>)]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpScheme {
    Http,
    Https,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPort {
    /// An address or a name that the manifest gives; `None` for the pod's own address.
    pub host: Option<Box<str>>,
    pub port: u16,
}

impl ProbeTarget {
    /// `None` if the probe has no handler.
    pub(crate) fn new(container: &Container, probe: &Probe) -> Option<Self> {
        if let Some(exec) = &probe.exec {
            return Some(Self::Exec(command(exec)));
        }
        let (handler, target) = if let Some(http) = &probe.http_get {
            let target = HttpTarget::new(container, http).map(Self::Http);
            (Handler::Http, target)
        } else if let Some(tcp) = &probe.tcp_socket {
            let target = HostPort::new(container, &tcp.host, &tcp.port).map(Self::Tcp);
            (Handler::Tcp, target)
        } else {
            let grpc = probe.grpc.as_ref()?;
            let target = port_number(grpc.port).map(|port| Self::Grpc {
                port,
                service: grpc.service.as_deref().unwrap_or_default().into(),
            });
            (Handler::Grpc, target)
        };
        Some(target.unwrap_or_else(|why| Self::Impossible {
            handler,
            why: why.into(),
        }))
    }

    /// What the engine knows of it.
    pub fn handler(&self) -> Handler {
        match self {
            Self::Exec(_) => Handler::Exec,
            Self::Http(_) => Handler::Http,
            Self::Tcp(_) => Handler::Tcp,
            Self::Grpc { .. } => Handler::Grpc,
            Self::Impossible { handler, .. } => *handler,
        }
    }
}

impl HookTarget {
    pub(crate) fn new(container: &Container, handler: &LifecycleHandler) -> Self {
        if let Some(sleep) = &handler.sleep {
            Self::Sleep(Span::from_secs(sleep.seconds.try_into().unwrap_or(0)))
        } else if let Some(exec) = &handler.exec {
            Self::Exec(command(exec))
        } else if let Some(http) = &handler.http_get {
            let target = HttpTarget::new(container, http);
            target.map_or_else(|why| Self::Impossible(why.into()), Self::Http)
        } else {
            Self::Impossible("invalid handler: only exec, httpGet and sleep are carried out".into())
        }
    }

    /// What the engine knows of it.
    pub fn plan(&self) -> HookPlan {
        match self {
            Self::Sleep(span) => HookPlan::Sleep(*span),
            Self::Exec(_) | Self::Http(_) | Self::Impossible(_) => HookPlan::Run,
        }
    }
}

impl HttpTarget {
    fn new(container: &Container, action: &HttpGetAction) -> Result<Self, String> {
        let headers = action.http_headers.iter();
        Ok(Self {
            scheme: if action.scheme.eq_ignore_ascii_case("https") {
                HttpScheme::Https
            } else {
                HttpScheme::Http
            },
            at: HostPort::new(container, &action.host, &action.port)?,
            path: action.path.as_str().into(),
            headers: headers
                .map(|header| (header.name.as_str().into(), header.value.as_str().into()))
                .collect(),
        })
    }
}

impl HostPort {
    fn new(container: &Container, host: &str, port: &IntOrString) -> Result<Self, String> {
        Ok(Self {
            host: Some(host).filter(|host| !host.is_empty()).map(Into::into),
            port: find_port(container, port)?,
        })
    }
}

fn command(exec: &ExecAction) -> Box<[String]> {
    exec.command.clone().into()
}

/// A port by number, or by its name among the container's own.
fn find_port(container: &Container, port: &IntOrString) -> Result<u16, String> {
    let name = match port {
        IntOrString::Int(number) => return port_number(*number),
        IntOrString::String(name) => name,
    };
    let named = container.ports.iter().find(|port| port.name == *name);
    match (named, name.parse()) {
        (Some(port), _) => port_number(port.container_port),
        (None, Ok(number)) => port_number(number),
        (None, Err(_)) => Err(format!(
            "couldn't find port: {name} in container {}",
            container.name
        )),
    }
}

fn port_number(number: i32) -> Result<u16, String> {
    u16::try_from(number)
        .ok()
        .filter(|number| *number != 0)
        .ok_or_else(|| format!("invalid port number: {number}"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn container() -> Container {
        let container = json!({"name": "app", "ports": [{"name": "web", "containerPort": 8080}]});
        serde_json::from_value(container).expect("a container")
    }

    fn probe(probe: &Value) -> ProbeTarget {
        let probe = serde_json::from_value(probe.clone()).expect("a probe");
        ProbeTarget::new(&container(), &probe).expect("a handler")
    }

    fn hook(handler: &Value) -> HookTarget {
        let handler = serde_json::from_value(handler.clone()).expect("a handler");
        HookTarget::new(&container(), &handler)
    }

    fn impossible(handler: Handler, why: &str) -> ProbeTarget {
        let why = why.into();
        ProbeTarget::Impossible { handler, why }
    }

    fn tcp(host: Option<&str>, port: u16) -> ProbeTarget {
        let host = host.map(Into::into);
        ProbeTarget::Tcp(HostPort { host, port })
    }

    #[test]
    fn named_ports_are_the_containers_own() {
        let port = |port: Value| probe(&json!({"tcpSocket": {"port": port}}));
        assert_eq!(port(json!("web")), tcp(None, 8080));
        assert_eq!(port(json!("81")), tcp(None, 81));
        let unknown = "couldn't find port: db in container app";
        assert_eq!(port(json!("db")), impossible(Handler::Tcp, unknown));
        assert_eq!(port(json!(0)), impossible(Handler::Tcp, "invalid port number: 0"));
        assert_eq!(
            probe(&json!({"grpc": {"port": 70000}})),
            impossible(Handler::Grpc, "invalid port number: 70000")
        );
    }

    #[test]
    fn a_host_of_the_manifest_stands_for_the_pods_address() {
        assert_eq!(
            probe(&json!({"tcpSocket": {"port": 81, "host": "::1"}})),
            tcp(Some("::1"), 81)
        );
        let http = json!({
            "port": "web", "path": "/h?q", "scheme": "HTTPS", "httpHeaders": [{"name": "A", "value": "b"}],
        });
        let expected = HttpTarget {
            scheme: HttpScheme::Https,
            at: HostPort {
                host: None,
                port: 8080,
            },
            path: "/h?q".into(),
            headers: [("A".into(), "b".into())].into(),
        };
        assert_eq!(
            probe(&json!({"httpGet": http})),
            ProbeTarget::Http(expected.clone())
        );
        assert_eq!(hook(&json!({"httpGet": http})), HookTarget::Http(expected));
    }

    #[test]
    fn the_first_handler_counts_and_none_is_none() {
        let both = json!({"tcpSocket": {"port": 80}, "exec": {"command": ["true"]}});
        let exec = ProbeTarget::Exec(["true".to_owned()].into());
        assert_eq!(probe(&both), exec);
        assert_eq!(ProbeTarget::new(&container(), &Probe::default()), None);
    }

    #[test]
    fn hooks_that_only_connect_are_never_carried_out() {
        let connect = hook(&json!({"tcpSocket": {"port": 80}}));
        assert!(matches!(&connect, HookTarget::Impossible(why) if why.contains("invalid handler")));
        assert_eq!(connect.plan(), HookPlan::Run);
        let lost = hook(&json!({"httpGet": {"port": "db"}}));
        assert!(matches!(lost, HookTarget::Impossible(why) if why.contains("couldn't find port")));
        let sleep = hook(&json!({"sleep": {"seconds": 5}}));
        assert_eq!(sleep.plan(), HookPlan::Sleep(Span::from_secs(5)));
    }
}
