//! Compares the table with upstream's round-trip fixtures: `cargo run --package pulselet-schema --example round_trip -- DIR`.
//!
//! `DIR` is `staging/src/k8s.io/api/testdata/HEAD` of a work tree of Kubernetes. It has every kind with every field filled, as
//! JSON, YAML and protobuf. Each form must decode strictly to the same value, and that value must survive protobuf.

use std::path::Path;
use std::process::ExitCode;

use pulselet_schema::canonical::complete_all;
use pulselet_schema::check::check;
use pulselet_schema::document::{ObjectType, parse_json, parse_yaml};
use pulselet_schema::{Profile, protobuf};
use serde_json::Value;

fn main() -> ExitCode {
    let Some(dir) = std::env::args().nth(1) else {
        eprintln!("usage: round_trip DIR");
        return ExitCode::from(2);
    };
    let (mut compared, mut unknown, mut failed) = (0, Vec::new(), 0);
    for name in names(Path::new(&dir)) {
        match compare(Path::new(&dir), &name) {
            Ok(true) => compared += 1,
            Ok(false) => unknown.push(name),
            Err(why) => {
                failed += 1;
                println!("{name}: {why}");
            }
        }
    }
    println!("not in the table: {}", unknown.join(", "));
    println!("{compared} passed, {failed} failed");
    ExitCode::from(u8::from(failed > 0))
}

/// The fixtures in a folder, without their endings.
fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).expect("the folder can be read");
    let names = entries.filter_map(|entry| {
        let name = entry.expect("the entry can be read").file_name();
        name.to_str()?.strip_suffix(".json").map(str::to_owned)
    });
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

/// False if the table lacks the kind.
fn compare(dir: &Path, name: &str) -> Result<bool, String> {
    let read = |ending: &str| {
        std::fs::read(dir.join(format!("{name}.{ending}"))).map_err(|error| format!("{ending}: {error}"))
    };
    let json = parse_json(&read("json")?)
        .map_err(|error| format!("json: {error}"))?
        .value;
    let text = |field: &str| json[field].as_str().unwrap_or_default().to_owned();
    let object_type = ObjectType {
        api_version: text("apiVersion"),
        kind: text("kind"),
    };
    if object_type.message().is_none() {
        return Ok(false);
    }
    let yaml = String::from_utf8(read("yaml")?).map_err(|error| format!("yaml: {error}"))?;
    let yaml = parse_yaml(&yaml).map_err(|error| format!("yaml: {error}"))?.value;
    let binary = protobuf::decode(&read("pb")?).map_err(|error| format!("pb: {error}"))?;
    let json = decode(&object_type, json).map_err(|error| format!("json: {error}"))?;
    for (form, value) in [("yaml", yaml), ("pb", binary)] {
        let value = decode(&object_type, value).map_err(|error| format!("{form}: {error}"))?;
        same(form, &json, &value)?;
    }
    let encoded = protobuf::encode(&json).ok_or("cannot be written as protobuf")?;
    let again = protobuf::decode(&encoded).map_err(|error| format!("own protobuf: {error}"))?;
    same("own protobuf", &json, &decode(&object_type, again)?)?;
    Ok(true)
}

/// The value in the server's form, if it has no problems.
fn decode(object_type: &ObjectType, mut value: Value) -> Result<Value, String> {
    let message = object_type.message().ok_or("unknown kind")?;
    let problems = check(message, &mut value, Profile::Kubernetes);
    if let Some(problem) = problems.first() {
        return Err(format!("{problem} and {} more", problems.len() - 1));
    }
    complete_all(message, &mut value);
    Ok(value)
}

fn same(form: &str, json: &Value, other: &Value) -> Result<(), String> {
    match difference("", json, other) {
        None => Ok(()),
        Some(difference) => Err(format!("{form} differs from json at {difference}")),
    }
}

/// The first place at which two values differ.
fn difference(path: &str, left: &Value, right: &Value) -> Option<String> {
    match (left, right) {
        (Value::Object(left), Value::Object(right)) => {
            let names = left
                .keys()
                .chain(right.keys().filter(|name| !left.contains_key(*name)));
            names.into_iter().find_map(|name| {
                let at = |map: &serde_json::Map<String, Value>| map.get(name).cloned().unwrap_or_default();
                difference(&format!("{path}.{name}"), &at(left), &at(right))
            })
        }
        (Value::Array(left), Value::Array(right)) if left.len() == right.len() => left
            .iter()
            .zip(right)
            .enumerate()
            .find_map(|(index, (left, right))| difference(&format!("{path}[{index}]"), left, right)),
        (left, right) => (left != right).then(|| format!("{path}: {left} and {right}")),
    }
}
