//! What of a pod's security settings a server enforces: what every server does, and what it says of itself.

use std::fs;

use pulselet_runtime::{Operation, SecurityFeatures};

use crate::call::{ASK, call};
use crate::connection::Connection;
use crate::wire::v1;

/// Says `Y` if the kernel has `AppArmor` and uses it.
const APP_ARMOR: &str = "/sys/module/apparmor/parameters/enabled";

/// What every server enforces on every machine. To it comes what a server says it has, and `AppArmor` where the kernel
/// has it.
pub const SECURITY: SecurityFeatures = SecurityFeatures {
    app_armor: false,
    strict_groups: false,
    recursive_read_only: false,
    user_namespaces: false,
    ..SecurityFeatures::ALL
};

/// Asks the server. One that does not answer is taken to have nothing of its own: what is not sure is refused.
pub(crate) async fn features(connection: &Connection) -> SecurityFeatures {
    let request = v1::StatusRequest { verbose: false };
    let answer = call(ASK, connection.runtime().status(request)).await;
    let status = answer.unwrap_or_else(|error| {
        let error = error.of(Operation::Connect);
        tracing::warn!(%error, "the runtime does not say which security features it has; none are assumed");
        v1::StatusResponse::default()
    });
    let app_armor = fs::read_to_string(APP_ARMOR).is_ok_and(|text| text.starts_with('Y'));
    said(&status, app_armor)
}

fn said(status: &v1::StatusResponse, app_armor: bool) -> SecurityFeatures {
    let default = status.runtime_handlers.iter().find(|it| it.name.is_empty());
    let handler = default.and_then(|handler| handler.features).unwrap_or_default();
    SecurityFeatures {
        app_armor,
        strict_groups: status.features.unwrap_or_default().supplemental_groups_policy,
        recursive_read_only: handler.recursive_read_only_mounts,
        user_namespaces: handler.user_namespaces,
        ..SECURITY
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_handler_and_the_server_say_what_they_have() {
        let handler = |name: &str, is_able| v1::RuntimeHandler {
            name: name.into(),
            features: Some(v1::RuntimeHandlerFeatures {
                recursive_read_only_mounts: is_able,
                user_namespaces: is_able,
            }),
        };
        let mut status = v1::StatusResponse::default();
        assert_eq!(said(&status, false), SECURITY);
        status.runtime_handlers = vec![handler("odd", true), handler("", false)];
        assert_eq!(said(&status, false), SECURITY);
        status.runtime_handlers = vec![handler("odd", false), handler("", true)];
        assert!(said(&status, false).recursive_read_only && !said(&status, false).strict_groups);
        status.features = Some(v1::RuntimeFeatures {
            supplemental_groups_policy: true,
        });
        assert_eq!(said(&status, true), SecurityFeatures::ALL);
    }
}
