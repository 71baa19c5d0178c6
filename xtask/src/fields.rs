//! `cargo xtask fields CHECKOUT`: writes the table of the fields of Kubernetes objects.
//!
//! The facts are in the struct tags of upstream's Go types: names, numbers in protobuf, what is left out when empty,
//! and how lists are merged. `CHECKOUT` is a work tree of Kubernetes at the release that the server answers as. The
//! table's form is told in `crates/api/schema/src/lib.rs`, which reads it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// Where the table is, from the root of this repository.
const TABLE: &str = "crates/api/schema/src/fields.txt";

/// The packages that are read: the name in the table, and the folder below `staging/src/k8s.io`.
const PACKAGES: [(&str, &str); 18] = [
    ("meta", "apimachinery/pkg/apis/meta/v1"),
    ("core", "api/core/v1"),
    ("apps", "api/apps/v1"),
    ("authentication", "api/authentication/v1"),
    ("authorization", "api/authorization/v1"),
    ("autoscaling", "api/autoscaling/v1"),
    ("batch", "api/batch/v1"),
    ("certificates", "api/certificates/v1"),
    ("coordination", "api/coordination/v1"),
    ("discovery", "api/discovery/v1"),
    ("events", "api/events/v1"),
    ("networking", "api/networking/v1"),
    ("node", "api/node/v1"),
    ("policy", "api/policy/v1"),
    ("rbac", "api/rbac/v1"),
    ("resource", "api/resource/v1"),
    ("scheduling", "api/scheduling/v1"),
    ("storage", "api/storage/v1"),
];

/// Types of `meta` that no kind has in it, but which are sent on their own.
const ALONE: [&str; 4] = [
    "meta.DeleteOptions",
    "meta.ListMeta",
    "meta.PartialObjectMetadata",
    "meta.Status",
];

/// A struct of upstream.
#[derive(Default)]
struct Struct {
    fields: Vec<Field>,
    atomic: bool,
    /// It is an object that is sent on its own.
    is_kind: bool,
}

struct Field {
    /// Empty if the fields of the type are those of the struct itself.
    name: String,
    number: u32,
    go_type: String,
    flags: Vec<String>,
}

#[derive(Default)]
struct Types {
    structs: BTreeMap<String, Struct>,
    /// Names for other types, with what they stand for.
    aliases: BTreeMap<String, String>,
}

/// Writes the table, and says what was wrong if that fails.
pub(crate) fn write(checkout: &Path, root: &Path) -> Result<(), String> {
    let mut types = Types::default();
    for (package, folder) in PACKAGES {
        let folder = checkout.join("staging/src/k8s.io").join(folder);
        for file in ["types.go", "watch.go", "devicetaint.go"] {
            match fs::read_to_string(folder.join(file)) {
                Ok(text) => types.read(package, &text),
                Err(_) if file != "types.go" => {}
                Err(error) => return Err(format!("cannot read {}: {error}", folder.join(file).display())),
            }
        }
    }
    let table = types.table();
    let path = root.join(TABLE);
    fs::write(&path, table).map_err(|error| format!("cannot write {}: {error}", path.display()))
}

impl Types {
    /// Reads one file of a package. It is formatted as all Go is, so lines tell enough.
    fn read(&mut self, package: &str, text: &str) {
        let mut imports = BTreeMap::new();
        let mut markers: Vec<String> = Vec::new();
        let mut open: Option<(String, Struct)> = None;
        for line in text.lines() {
            let trimmed = line.trim();
            if let Some(marker) = trimmed.strip_prefix("// +") {
                markers.push(marker.to_owned());
            } else if trimmed.starts_with("//") {
                // Fields that were given up are kept as comments.
            } else if let Some((name, mut found)) = open.take() {
                if line == "}" {
                    self.structs.insert(name, found);
                    markers.clear();
                } else {
                    if trimmed.contains("metav1.TypeMeta") || trimmed.starts_with("TypeMeta ") {
                        found.is_kind = true;
                    }
                    if let Some(field) = field(package, trimmed, &imports, &markers) {
                        found.fields.push(field);
                        markers.clear();
                    }
                    open = Some((name, found));
                }
            } else if let Some(rest) = line.strip_prefix("type ") {
                open = self.declare(package, rest, &imports, &std::mem::take(&mut markers));
            } else if let Some((alias, path)) = import(trimmed) {
                imports.insert(alias, path);
            } else if trimmed.is_empty() {
                markers.clear();
            }
        }
    }

    /// Takes in a declaration; returns the struct that begins with it, if one does.
    fn declare(
        &mut self,
        package: &str,
        rest: &str,
        imports: &BTreeMap<String, String>,
        markers: &[String],
    ) -> Option<(String, Struct)> {
        let (name, meant) = rest.split_once(' ')?;
        let name = format!("{package}.{name}");
        let meant = meant.trim_start_matches("= ").split(" //").next()?.trim();
        if meant == "struct {" {
            let atomic = markers.iter().any(|marker| marker == "structType=atomic");
            let found = Struct {
                atomic,
                ..Struct::default()
            };
            return Some((name, found));
        }
        // A named list that may be absent is a message of its own in protobuf.
        let wrapped = markers.iter().any(|marker| marker == "protobuf.nullable=true");
        let meant = if wrapped && meant == "[]string" {
            "texts".to_owned()
        } else {
            qualify(package, meant, imports)
        };
        self.aliases.insert(name, meant);
        None
    }

    /// What a Go type is once its names are followed to their end.
    fn resolve(&self, go_type: &str) -> String {
        for prefix in ["*", "[]"] {
            if let Some(rest) = go_type.strip_prefix(prefix) {
                return format!("{prefix}{}", self.resolve(rest));
            }
        }
        if let Some(rest) = go_type.strip_prefix("map[") {
            let value = rest.split_once(']').map_or("string", |(_, value)| value);
            return format!("{{}}{}", self.resolve(value));
        }
        let known = match go_type {
            "meta.Time" => "time",
            "meta.MicroTime" => "microtime",
            "meta.FieldsV1" | "runtime.RawExtension" => "json",
            "meta.Duration" => "duration",
            "resource/quantity.Quantity" => "quantity",
            "intstr.IntOrString" => "intorstring",
            "types.UID" | "types.NodeName" => "string",
            "uint8" => "int32",
            _ => "",
        };
        if !known.is_empty() {
            return known.to_owned();
        }
        match self.aliases.get(go_type) {
            Some(meant) => self.resolve(meant),
            None => go_type.to_owned(),
        }
    }

    fn table(&self) -> String {
        let mut wanted: BTreeSet<String> = ALONE.map(str::to_owned).into();
        wanted.extend(self.structs.iter().filter_map(|(name, found)| {
            let has_metadata = found
                .fields
                .iter()
                .any(|field| field.go_type == "meta.ObjectMeta");
            (found.is_kind && has_metadata).then(|| name.clone())
        }));
        let mut queue: Vec<String> = wanted.iter().cloned().collect();
        while let Some(name) = queue.pop() {
            for field in self
                .structs
                .get(&name)
                .into_iter()
                .flat_map(|found| &found.fields)
            {
                let resolved = self.resolve(&field.go_type);
                let base = resolved.trim_start_matches(['*', '[', ']', '{', '}']).to_owned();
                if self.structs.contains_key(&base) && wanted.insert(base.clone()) {
                    queue.push(base);
                }
            }
        }
        let mut out = String::new();
        for name in &wanted {
            let Some(found) = self.structs.get(name) else {
                continue;
            };
            let _ = writeln!(
                out,
                "{name}{}{}",
                if found.is_kind { " kind" } else { "" },
                if found.atomic { " atomic" } else { "" }
            );
            for field in &found.fields {
                let shown = if field.name.is_empty() { "." } else { &field.name };
                let _ = write!(out, " {} {shown} {}", field.number, self.resolve(&field.go_type));
                for flag in &field.flags {
                    let _ = write!(out, " {flag}");
                }
                out.push('\n');
            }
        }
        out
    }
}

/// `v1 "k8s.io/api/core/v1"` in an import block.
fn import(line: &str) -> Option<(String, String)> {
    let (alias, path) = line.split_once('"')?;
    let path = path.strip_suffix('"')?;
    if !path.starts_with("k8s.io/") {
        return None;
    }
    let last = path.rsplit('/').next().unwrap_or_default();
    let alias = if alias.trim().is_empty() {
        last
    } else {
        alias.trim()
    };
    Some((alias.to_owned(), path.to_owned()))
}

/// A Go type with its package by the table's name for it.
fn qualify(package: &str, go_type: &str, imports: &BTreeMap<String, String>) -> String {
    for prefix in ["*", "[]"] {
        if let Some(rest) = go_type.strip_prefix(prefix).filter(|_| go_type != "[]byte") {
            return format!("{prefix}{}", qualify(package, rest, imports));
        }
    }
    if let Some((key, value)) = go_type.strip_prefix("map[").and_then(|rest| rest.split_once(']')) {
        return format!("map[{key}]{}", qualify(package, value, imports));
    }
    match go_type {
        "[]byte" => "bytes".to_owned(),
        "string" | "bool" | "int32" | "int64" | "uint8" | "float64" => go_type.to_owned(),
        _ => match go_type.split_once('.') {
            None => format!("{package}.{go_type}"),
            Some((alias, name)) => {
                let path = imports.get(alias).map_or(alias, String::as_str);
                let known = PACKAGES
                    .iter()
                    .find(|(_, folder)| path == format!("k8s.io/{folder}"));
                match known {
                    Some((package, _)) => format!("{package}.{name}"),
                    None if path.ends_with("/api/resource") => format!("resource/quantity.{name}"),
                    None => format!("{}.{name}", path.rsplit('/').next().unwrap_or(alias)),
                }
            }
        },
    }
}

/// A field of a struct; `None` if the line is none, or if it is not on the wire.
fn field(package: &str, line: &str, imports: &BTreeMap<String, String>, markers: &[String]) -> Option<Field> {
    let (declared, tags) = line.split_once('`')?;
    let tags = tags.split_once('`')?.0;
    let go_type = declared.split_whitespace().last()?;
    let protobuf = tag(tags, "protobuf")?;
    let number = protobuf.split(',').nth(1)?.parse().ok()?;
    let json = tag(tags, "json").unwrap_or_default();
    let mut json = json.split(',');
    let name = json.next().unwrap_or_default().to_owned();
    let options: Vec<&str> = json.collect();
    let marked = |key: &'static str| markers.iter().filter_map(move |marker| marker.strip_prefix(key));
    let mut flags = Vec::new();
    if options.contains(&"omitzero") {
        flags.push("omitzero".to_owned());
    } else if !options.contains(&"omitempty") && !name.is_empty() {
        flags.push("always".to_owned());
    }
    let keys: Vec<&str> = marked("listMapKey=").collect();
    match marked("listType=").next() {
        Some("map") => flags.push(format!("map={}", keys.join(","))),
        Some("set") => flags.push("set".to_owned()),
        Some(_) | None => {}
    }
    if marked("mapType=")
        .chain(marked("structType="))
        .any(|kind| kind == "atomic")
    {
        flags.push("atomic".to_owned());
    }
    if tag(tags, "patchStrategy").is_some_and(|strategy| strategy.split(',').any(|word| word == "merge")) {
        flags.push(format!(
            "merge={}",
            tag(tags, "patchMergeKey").unwrap_or_default()
        ));
    }
    Some(Field {
        name,
        number,
        go_type: qualify(package, go_type, imports),
        flags,
    })
}

/// A tag of a struct field.
fn tag<'a>(tags: &'a str, name: &str) -> Option<&'a str> {
    let start = format!("{name}:\"");
    let at = tags.find(&start)? + start.len();
    tags[at..].split('"').next()
}
