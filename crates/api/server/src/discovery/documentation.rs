//! Upstream's texts about its fields, for `kubectl explain`.
//!
//! They come with the types of `k8s-openapi`, which generates definitions of all kinds; names and types of fields are not taken
//! from there but from the table.

use k8s_openapi::api;
use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value};

/// Generates the definitions of types, group by group.
macro_rules! define {
    ($generator:ident; $($group:ident: $($kind:ident),+;)+) => {
        $($($generator.subschema_for::<api::$group::v1::$kind>();)+)+
    };
}

/// Upstream's definitions, by their names.
pub(super) fn upstream() -> Map<String, Value> {
    let mut generator = SchemaSettings::openapi3().into_generator();
    generate(&mut generator);
    generator.take_definitions(true)
}

#[rustfmt::skip]
fn generate(generator: &mut SchemaGenerator) {
    define! { generator;
        apps: ControllerRevision, DaemonSet, Deployment, ReplicaSet, StatefulSet;
        batch: CronJob, Job;
        certificates: CertificateSigningRequest;
        coordination: Lease;
        core: ConfigMap, Endpoints, Event, LimitRange, Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod, PodTemplate, ReplicationController, ResourceQuota, Secret, Service, ServiceAccount;
        discovery: EndpointSlice;
        events: Event;
        networking: NetworkPolicy;
        node: RuntimeClass;
        policy: PodDisruptionBudget;
        rbac: ClusterRole, ClusterRoleBinding, Role, RoleBinding;
        resource: DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice;
        scheduling: PriorityClass;
        storage: CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment, VolumeAttributesClass;
    }
}

#[cfg(test)]
mod tests {
    use pulselet_schema::openapi::definition_name;

    use super::*;
    use crate::registry::resource::GroupVersion;

    #[test]
    fn every_field_of_every_kind_has_a_text() {
        let texts = upstream();
        for endpoint in GroupVersion::ALL.into_iter().flat_map(GroupVersion::endpoints) {
            let message = endpoint.message();
            let definition = &texts[&definition_name(message)];
            // A field that is a message has the text of that message if it has none of its own.
            let plain = message.all_fields().filter(|field| field.message().is_none());
            for field in plain.filter(|field| field.documentation.is_none()) {
                let text = &definition["properties"][field.name]["description"];
                assert!(text.is_string(), "{}.{} has no text", message.name, field.name);
            }
        }
    }
}
