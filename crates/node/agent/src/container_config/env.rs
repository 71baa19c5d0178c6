//! The environment of a container: literal values, `$(VAR)` references, what the downward API offers, what config maps
//! and secrets hold, and where services are.

use std::collections::{BTreeMap, BTreeSet};

use pulselet_model::Container;
use pulselet_model::openapi::api::core::v1 as core;
use pulselet_runtime::EnvVar;
use pulselet_volume::{Downward, Objects, ServiceFacts, SourceKind, Wanted};

use super::error::ConfigError;
use super::expansion::expand;

/// Variables, and what had to be left out.
#[derive(Debug, Default)]
pub(super) struct Environment {
    /// Those of `envFrom` first, then the manifest's, in its order, then those about services.
    pub(super) variables: Vec<EnvVar>,
    pub(super) skipped: Vec<Skipped>,
}

/// Keys of one object whose names no variable can have.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Skipped {
    kind: SourceKind,
    object: String,
    keys: Vec<String>,
}

impl Skipped {
    pub(super) fn message(&self, namespace: &str) -> String {
        let Self { kind, object, keys } = self;
        let (kind, keys) = (kind.field_name(), keys.join(", "));
        format!(
            "Keys [{keys}] from the EnvFrom {kind} {namespace}/{object} were skipped since they are considered \
             invalid environment variable names."
        )
    }
}

/// The objects that the environment is made from.
pub(super) fn wanted(container: &Container) -> Wanted {
    let mut wanted = Wanted::default();
    for source in &container.env_from {
        let config_map = source.config_map_ref.as_ref();
        let secret = source.secret_ref.as_ref();
        wanted.config_maps.extend(config_map.map(|it| it.name.clone()));
        wanted.secrets.extend(secret.map(|it| it.name.clone()));
    }
    for source in container.env.iter().filter_map(|it| it.value_from.as_ref()) {
        let config_map = source.config_map_key_ref.as_ref();
        let secret = source.secret_key_ref.as_ref();
        wanted.config_maps.extend(config_map.map(|it| it.name.clone()));
        wanted.secrets.extend(secret.map(|it| it.name.clone()));
    }
    wanted
}

/// The last of equal names is the one that counts.
pub(super) fn environment(
    container: &Container,
    downward: Downward<'_>,
    objects: &Objects,
) -> Result<Environment, ConfigError> {
    let mut made = Environment::default();
    let mut known: BTreeMap<String, String> = BTreeMap::new();
    let mut order: Vec<&str> = Vec::new();
    let services = objects.services()?.iter().map(ServiceFacts::variables);
    let services: BTreeMap<String, String> = services.flatten().collect();
    for source in &container.env_from {
        add_all(source, objects, &mut known, &mut made.skipped)?;
    }
    let inherited: Vec<String> = known.keys().cloned().collect();
    order.extend(inherited.iter().map(String::as_str));
    for variable in &container.env {
        let value = match (&variable.value_from, variable.value.as_deref()) {
            (Some(source), None | Some("")) => {
                from_source(&variable.name, source, container, downward, objects)?
            }
            (_, text) => Some(expand(text.unwrap_or_default(), |name| {
                known.get(name).or_else(|| services.get(name)).map(String::as_str)
            })),
        };
        if let Some(value) = value {
            known.insert(variable.name.clone(), value);
            order.push(&variable.name);
        }
    }
    let given: BTreeSet<String> = known.keys().cloned().collect();
    for name in order {
        if let Some((name, value)) = known.remove_entry(name) {
            made.variables.push(EnvVar { name, value });
        }
    }
    // What the manifest says of a name counts.
    let rest = services.into_iter().filter(|(name, _)| !given.contains(name));
    made.variables
        .extend(rest.map(|(name, value)| EnvVar { name, value }));
    Ok(made)
}

/// Adds every key of an object.
fn add_all(
    source: &core::EnvFromSource,
    objects: &Objects,
    known: &mut BTreeMap<String, String>,
    skipped: &mut Vec<Skipped>,
) -> Result<(), ConfigError> {
    let prefix = source.prefix.as_deref().unwrap_or_default();
    let mut add = |kind, object: &str, entries: &mut dyn Iterator<Item = (&String, String)>| {
        let mut keys = Vec::new();
        for (key, value) in entries {
            let name = format!("{prefix}{key}");
            if is_name(&name) {
                known.insert(name, value);
            } else {
                keys.push(name);
            }
        }
        if !keys.is_empty() {
            let object = object.to_owned();
            skipped.push(Skipped { kind, object, keys });
        }
    };
    if let Some(reference) = &source.config_map_ref {
        let found = objects.config_map(&reference.name, reference.optional)?;
        let entries = found.and_then(|it| it.data.as_ref()).into_iter().flatten();
        let mut entries = entries.map(|(key, text)| (key, text.clone()));
        add(SourceKind::ConfigMap, &reference.name, &mut entries);
    }
    if let Some(reference) = &source.secret_ref {
        let found = objects.secret(&reference.name, reference.optional)?;
        let entries = found.and_then(|it| it.data.as_ref()).into_iter().flatten();
        let mut entries = entries.map(|(key, data)| (key, text(&data.0)));
        add(SourceKind::Secret, &reference.name, &mut entries);
    }
    Ok(())
}

/// What the API accepts as the name of a variable.
fn is_name(name: &str) -> bool {
    let fits = |byte: u8| (byte.is_ascii_graphic() || byte == b' ') && byte != b'=';
    !name.is_empty() && name.bytes().all(fits)
}

/// Environments are text here and in every runtime's interface.
fn text(data: &[u8]) -> String {
    String::from_utf8_lossy(data).into_owned()
}

/// None where the source is optional and not there: the variable is then not set.
fn from_source(
    variable: &str,
    source: &core::EnvVarSource,
    container: &Container,
    downward: Downward<'_>,
    objects: &Objects,
) -> Result<Option<String>, ConfigError> {
    let of_variable = |source| ConfigError::Downward {
        variable: variable.to_owned(),
        source,
    };
    if let Some(field) = &source.field_ref {
        return downward.field(&field.field_path).map(Some).map_err(of_variable);
    }
    if let Some(selector) = &source.resource_field_ref {
        let value = downward.resource(selector, Some(container));
        return value.map(Some).map_err(of_variable);
    }
    let namespace = downward.pod.namespace();
    let missing_key = |kind, object: &str, key: &str| ConfigError::MissingKey {
        kind,
        object: format!("{namespace}/{object}"),
        key: key.to_owned(),
    };
    if let Some(reference) = &source.config_map_key_ref {
        let object = objects.config_map(&reference.name, reference.optional)?;
        let value = object.and_then(|it| it.data.as_ref()?.get(&reference.key).cloned());
        if value.is_none() && reference.optional != Some(true) {
            return Err(missing_key(
                SourceKind::ConfigMap,
                &reference.name,
                &reference.key,
            ));
        }
        return Ok(value);
    }
    if let Some(reference) = &source.secret_key_ref {
        let object = objects.secret(&reference.name, reference.optional)?;
        let value = object.and_then(|it| it.data.as_ref()?.get(&reference.key));
        if value.is_none() && reference.optional != Some(true) {
            return Err(missing_key(SourceKind::Secret, &reference.name, &reference.key));
        }
        return Ok(value.map(|data| text(&data.0)));
    }
    Err(ConfigError::EnvSource {
        variable: variable.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;
    use pulselet_model::Pod;
    use pulselet_volume::{NodeFacts, ServicePortFacts};
    use serde_json::{Value, json};

    fn resolve(container: &Value, objects: &Objects) -> Result<Environment, ConfigError> {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "web", "labels": {"app": "shop"}},
            "spec": {"containers": [container]},
        }))
        .unwrap();
        let mut node = NodeFacts::detect();
        node.allocatable.cpu_millis = 4000;
        let downward = Downward {
            pod: &pod,
            uid: "u-1",
            pod_ips: &[IpAddr::V4(Ipv4Addr::LOCALHOST)],
            node: &node,
        };
        environment(&pod.spec.containers[0], downward, objects)
    }

    fn variables(made: &Environment) -> Vec<(&str, &str)> {
        made.variables
            .iter()
            .map(|it| (it.name.as_str(), it.value.as_str()))
            .collect()
    }

    fn objects() -> Objects {
        let data = json!({"COLOUR": "red", "my-key": "x", "a=b": "never"});
        let config_maps = json!({"settings": {"data": data, "binaryData": {"RAW": "AAEC"}}});
        let secrets = json!({"keys": {"data": {"PASSWORD": "aHVudGVyMg=="}}});
        Objects::of(
            serde_json::from_value(config_maps).unwrap(),
            serde_json::from_value(secrets).unwrap(),
        )
    }

    #[test]
    fn earlier_variables_can_be_used_and_the_last_of_a_name_counts() {
        let env = json!([
            {"name": "LATE", "value": "$(NOT_YET)"},
            {"name": "NOT_YET", "value": "a"},
            {"name": "BOTH", "value": "$(NOT_YET)-$$(NOT_YET)"},
            {"name": "NOT_YET", "value": "b"},
            {"name": "APP", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['app']"}}},
            {"name": "CPUS", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
        ]);
        let made = resolve(&json!({"name": "app", "env": env}), &Objects::default()).unwrap();
        let expected = [
            ("LATE", "$(NOT_YET)"),
            ("NOT_YET", "b"),
            ("BOTH", "a-$(NOT_YET)"),
            ("APP", "shop"),
            ("CPUS", "4"),
        ];
        assert_eq!(variables(&made), expected);
        let env = json!([{"name": "X", "valueFrom": {"fieldRef": {"fieldPath": "spec.secret"}}}]);
        let error = resolve(&json!({"name": "app", "env": env}), &Objects::default()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "environment variable \"X\": unsupported field path \"spec.secret\""
        );
    }

    #[test]
    fn services_can_be_used_and_replaced() {
        let service = ServiceFacts {
            name: "kubernetes".to_owned(),
            address: "10.96.0.1".to_owned(),
            ports: vec![ServicePortFacts {
                name: "https".to_owned(),
                number: 443,
                protocol: "TCP".to_owned(),
            }],
        };
        let env = json!([
            {"name": "URL", "value": "https://$(KUBERNETES_SERVICE_HOST)"},
            {"name": "KUBERNETES_PORT", "value": "mine"},
        ]);
        let objects = Objects::default().with_services(vec![service]);
        let made = resolve(&json!({"name": "app", "env": env}), &objects).unwrap();
        let made = variables(&made);
        assert_eq!(
            made[..2],
            [("URL", "https://10.96.0.1"), ("KUBERNETES_PORT", "mine")]
        );
        assert!(
            made.contains(&("KUBERNETES_SERVICE_PORT_HTTPS", "443")),
            "{made:?}"
        );
        assert_eq!(
            made.iter().filter(|(name, _)| *name == "KUBERNETES_PORT").count(),
            1
        );
    }

    #[test]
    fn whole_objects_come_first_and_can_be_used_and_replaced() {
        let container = json!({
            "name": "app",
            "envFrom": [
                {"configMapRef": {"name": "settings"}},
                {"prefix": "DB_", "secretRef": {"name": "keys"}},
                {"secretRef": {"name": "none", "optional": true}},
            ],
            "env": [
                {"name": "URL", "value": "db:$(DB_PASSWORD)@host"},
                {"name": "COLOUR", "value": "blue"},
            ],
        });
        let made = resolve(&container, &objects()).unwrap();
        let expected = [
            ("COLOUR", "blue"),
            ("DB_PASSWORD", "hunter2"),
            ("my-key", "x"),
            ("URL", "db:hunter2@host"),
        ];
        assert_eq!(variables(&made), expected);
        let messages: Vec<_> = made.skipped.iter().map(|it| it.message("shop")).collect();
        assert_eq!(
            messages,
            [
                "Keys [a=b] from the EnvFrom configMap shop/settings were skipped since they are considered invalid \
                 environment variable names."
            ]
        );
    }

    #[test]
    fn single_keys_are_taken_or_missed_as_the_reference_says() {
        let one = |source: Value| {
            let env = json!([{"name": "X", "valueFrom": source}]);
            resolve(&json!({"name": "app", "env": env}), &objects())
        };
        let value = |source: Value| one(source).unwrap().variables[0].value.clone();
        assert_eq!(
            value(json!({"configMapKeyRef": {"name": "settings", "key": "COLOUR"}})),
            "red"
        );
        assert_eq!(
            value(json!({"secretKeyRef": {"name": "keys", "key": "PASSWORD"}})),
            "hunter2"
        );
        let optional = json!({"configMapKeyRef": {"name": "settings", "key": "RAW", "optional": true}});
        assert!(one(optional).unwrap().variables.is_empty());
        let cases = [
            (
                json!({"configMapKeyRef": {"name": "settings", "key": "RAW"}}),
                "couldn't find key RAW in ConfigMap default/settings",
            ),
            (
                json!({"secretKeyRef": {"name": "keys", "key": "k"}}),
                "couldn't find key k in Secret default/keys",
            ),
            (
                json!({"configMapKeyRef": {"name": "none", "key": "k"}}),
                "configmap \"none\" not found",
            ),
            (
                json!({"secretKeyRef": {"name": "none", "key": "k"}}),
                "secret \"none\" not found",
            ),
        ];
        for (source, message) in cases {
            assert_eq!(one(source).unwrap_err().to_string(), message);
        }
    }
}
