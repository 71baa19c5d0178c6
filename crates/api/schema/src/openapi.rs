//! `OpenAPI` definitions of messages: their fields and how lists and maps are merged come from the table.
//!
//! The texts of upstream's own fields are the caller's to give; the overlay has Pulselet's. This module describes objects
//! only: paths and operations are the server's.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use crate::{Field, FieldType, ListKind, Message, Profile, Shape};

/// The version of `OpenAPI` that definitions are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenApiVersion {
    V2,
    V3,
}

impl OpenApiVersion {
    /// Where a document keeps its definitions.
    pub const fn definitions(self) -> &'static str {
        match self {
            Self::V2 => "/definitions",
            Self::V3 => "/components/schemas",
        }
    }
}

/// The name by which `OpenAPI` knows a message, such as `io.k8s.api.core.v1.Pod`.
pub fn definition_name(message: &Message) -> String {
    match message.name.split_once('.') {
        Some(("meta", name)) => format!("io.k8s.apimachinery.pkg.apis.meta.v1.{name}"),
        Some((package, name)) => format!("io.k8s.api.{package}.v1.{name}"),
        None => message.name.to_owned(),
    }
}

/// The definitions of these messages and of all that they refer to. `texts` has upstream's definitions by the same names, of
/// which descriptions and required fields are taken.
pub fn definitions(
    roots: impl IntoIterator<Item = &'static Message>,
    version: OpenApiVersion,
    profile: Profile,
    texts: &Map<String, Value>,
) -> Map<String, Value> {
    let mut writer = Writer {
        version,
        profile,
        texts,
        open: roots.into_iter().collect(),
        seen: BTreeSet::new(),
    };
    let mut definitions = Map::new();
    while let Some(message) = writer.open.pop() {
        if writer.seen.insert(message.name) {
            let definition = writer.definition(message);
            definitions.insert(definition_name(message), definition);
        }
    }
    definitions
}

struct Writer<'a> {
    version: OpenApiVersion,
    profile: Profile,
    texts: &'a Map<String, Value>,
    open: Vec<&'static Message>,
    seen: BTreeSet<&'static str>,
}

impl Writer<'_> {
    fn definition(&mut self, message: &'static Message) -> Value {
        let texts = self.texts.get(&definition_name(message));
        let text = |pointer: &str| texts.and_then(|texts| texts.pointer(pointer)).cloned();
        let mut properties = Map::new();
        if message.is_kind {
            for name in ["apiVersion", "kind"] {
                let mut property = json!({"type": "string"});
                describe(&mut property, text(&format!("/properties/{name}/description")));
                properties.insert(name.to_owned(), property);
            }
        }
        let profile = self.profile;
        for field in message.all_fields().filter(|field| field.exists_in(profile)) {
            let mut property = self.property(field);
            let own = field
                .documentation
                .as_ref()
                .filter(|_| profile == Profile::Pulselet);
            let description = match own {
                Some(own) => Some(json!(own)),
                None => text(&format!("/properties/{}/description", field.name)),
            };
            describe(&mut property, description);
            properties.insert(field.name.to_owned(), property);
        }
        let mut definition = json!({"type": "object", "properties": properties});
        describe(&mut definition, text("/description"));
        if let Some(required) = text("/required") {
            definition["required"] = required;
        }
        if message.atomic {
            definition["x-kubernetes-map-type"] = json!("atomic");
        }
        definition
    }

    fn property(&mut self, field: &'static Field) -> Value {
        let mut property = match field.shape {
            Shape::List => json!({"type": "array", "items": self.value(field)}),
            Shape::Map => json!({"type": "object", "additionalProperties": self.value(field)}),
            Shape::One | Shape::Optional | Shape::Inline => match field.message() {
                // Beside a reference, version 3 allows nothing else.
                Some(_) if self.version == OpenApiVersion::V3 => json!({"allOf": [self.value(field)]}),
                _ => self.value(field),
            },
        };
        if field.shape == Shape::List {
            merge_rules(&mut property, field);
        } else if field.atomic {
            property["x-kubernetes-map-type"] = json!("atomic");
        }
        property
    }

    fn value(&mut self, field: &'static Field) -> Value {
        if let Some(message) = field.message() {
            self.open.push(message);
            let (place, name) = (self.version.definitions(), definition_name(message));
            return json!({"$ref": format!("#{place}/{name}")});
        }
        let either = |one: &str, other: &str, format: Option<&str>| match (self.version, format) {
            (OpenApiVersion::V2, None) => json!({"type": one}),
            (OpenApiVersion::V2, Some(format)) => json!({"type": one, "format": format}),
            (OpenApiVersion::V3, None) => json!({"oneOf": [{"type": one}, {"type": other}]}),
            (OpenApiVersion::V3, Some(format)) => {
                json!({"oneOf": [{"type": one}, {"type": other}], "format": format})
            }
        };
        match field.kind {
            FieldType::Text => json!({"type": "string"}),
            FieldType::Bool => json!({"type": "boolean"}),
            FieldType::Int32 => json!({"type": "integer", "format": "int32"}),
            FieldType::Int64 => json!({"type": "integer", "format": "int64"}),
            FieldType::Double => json!({"type": "number", "format": "double"}),
            FieldType::Bytes => json!({"type": "string", "format": "byte"}),
            FieldType::Time | FieldType::MicroTime => json!({"type": "string", "format": "date-time"}),
            FieldType::Quantity => either("string", "number", None),
            FieldType::IntOrString => either("string", "integer", Some("int-or-string")),
            FieldType::Texts => json!({"type": "array", "items": {"type": "string"}}),
            FieldType::Json | FieldType::Message(_) => json!({"type": "object"}),
        }
    }
}

fn describe(value: &mut Value, description: Option<Value>) {
    if let Some(description) = description {
        value["description"] = description;
    }
}

/// How patches and server-side apply merge a list.
fn merge_rules(property: &mut Value, field: &Field) {
    let kind = match field.list {
        ListKind::Atomic => "atomic",
        ListKind::Set => "set",
        ListKind::Map(keys) => {
            property["x-kubernetes-list-map-keys"] = json!(keys);
            "map"
        }
    };
    property["x-kubernetes-list-type"] = json!(kind);
    match field.patch {
        ListKind::Atomic => {}
        ListKind::Set => property["x-kubernetes-patch-strategy"] = json!("merge"),
        ListKind::Map(keys) => {
            property["x-kubernetes-patch-strategy"] = json!("merge");
            property["x-kubernetes-patch-merge-key"] = json!(keys[0]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn definitions_of(name: &str, version: OpenApiVersion, profile: Profile) -> Map<String, Value> {
        definitions(Message::named(name), version, profile, &Map::new())
    }

    #[test]
    fn own_fields_are_described_in_one_profile() {
        let probe = |profile| {
            let mut all = definitions_of("apps.Deployment", OpenApiVersion::V3, profile);
            all.remove("io.k8s.api.core.v1.Probe")
                .expect("a Deployment has probes")
        };
        let ours = probe(Profile::Pulselet);
        let period = &ours["properties"]["periodMilliseconds"];
        assert_eq!(
            (&period["type"], &period["format"]),
            (&json!("integer"), &json!("int32"))
        );
        assert!(period["description"].as_str().unwrap().contains("periodSeconds"));
        assert_eq!(ours["properties"]["periodSeconds"]["type"], "integer");
        let upstream = probe(Profile::Kubernetes);
        assert!(upstream["properties"].get("periodMilliseconds").is_none());
        assert!(
            upstream["properties"]["periodSeconds"]
                .get("description")
                .is_none()
        );
    }

    #[test]
    fn lists_say_how_they_are_merged() {
        let all = definitions_of("core.Pod", OpenApiVersion::V2, Profile::Kubernetes);
        let containers = &all["io.k8s.api.core.v1.PodSpec"]["properties"]["containers"];
        assert_eq!(containers["x-kubernetes-list-map-keys"], json!(["name"]));
        assert_eq!(containers["x-kubernetes-patch-merge-key"], "name");
        assert_eq!(
            containers["items"]["$ref"],
            "#/definitions/io.k8s.api.core.v1.Container"
        );
    }
}
