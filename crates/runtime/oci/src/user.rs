//! Who a container's processes run as: numbers and names, looked up in the image's own /etc/passwd and /etc/group.
//!
//! The files may say anything: they are read up to a bound, and lines that make no sense are skipped. They are looked up
//! inside the container's root when it starts. Before that, its layers are enough to refuse a user that nothing can provide.

use std::{
    fs::File,
    io::Read,
    path::{Path, PathBuf},
};

use pulselet_sys::ProcessCredentials;
use rustix::{
    fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2},
    io::Errno,
};
use serde::{Deserialize, Serialize};

use crate::spec::UserSpec;

pub(crate) const PASSWD_FILE: &str = "/etc/passwd";
pub(crate) const GROUP_FILE: &str = "/etc/group";

/// Bytes read of each of the two files; an image with more users than that has them without names.
const MAX_FILE: u64 = 4 << 20;

/// Groups a process may have, as the kernel bounds them.
const MAX_GROUPS: usize = 65_536;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct User {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) groups: Vec<u32>,
    /// From the image's entry.
    pub(crate) home: Option<String>,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum UserError {
    #[error("unable to find user {0}: no matching entries in passwd file")]
    UnknownUser(String),
    #[error("unable to find group {0}: no matching entries in group file")]
    UnknownGroup(String),
}

impl User {
    pub(crate) fn credentials(&self) -> ProcessCredentials {
        ProcessCredentials {
            uid: self.uid,
            gid: self.gid,
            groups: self.groups.clone(),
        }
    }
}

/// Looks the user up in the files of this process's root.
pub(crate) fn look_up(spec: &UserSpec) -> Result<User, UserError> {
    let text = |path: &str| File::open(Path::new(path)).map(read).unwrap_or_default();
    look_up_in(spec, &text(PASSWD_FILE), &text(GROUP_FILE))
}

/// Refuses a user or group that the image certainly does not have. What only a running container could decide is let through.
pub(crate) fn check_in_layers(spec: &UserSpec, layers: &[PathBuf]) -> Result<(), UserError> {
    let is_number = |part: &str| part.is_empty() || part.parse::<u32>().is_ok();
    if spec.user.split(':').all(is_number) {
        return Ok(());
    }
    match (
        read_in_layers(layers, PASSWD_FILE),
        read_in_layers(layers, GROUP_FILE),
    ) {
        (Some(passwd), Some(group)) => look_up_in(spec, &passwd, &group).map(drop),
        (None, _) | (_, None) => Ok(()),
    }
}

/// Reads the file as the topmost layer has it, empty if none has it. Returns `None` if that cannot be decided from outside,
/// as with links.
fn read_in_layers(layers: &[PathBuf], path: &str) -> Option<String> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    for layer in layers.iter().rev() {
        let root = openat(CWD, layer, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
        let inside = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        match openat2(&root, path.trim_start_matches('/'), flags, Mode::empty(), inside) {
            Err(Errno::NOENT) => {}
            Err(_) => return None,
            Ok(found) => {
                let file = File::from(found);
                // A mark that the file was deleted is a device.
                let is_file = file.metadata().is_ok_and(|metadata| metadata.is_file());
                return is_file.then(|| read(file));
            }
        }
    }
    Some(String::new())
}

fn read(file: File) -> String {
    let mut bytes = Vec::new();
    // What was read before an error is as good as a shorter file.
    let _ = file.take(MAX_FILE).read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

fn look_up_in(spec: &UserSpec, passwd: &str, group_file: &str) -> Result<User, UserError> {
    let (user, group) = match spec.user.split_once(':') {
        Some((user, group)) => (user, Some(group).filter(|group| !group.is_empty())),
        None => (spec.user.as_str(), None),
    };
    let user = if user.is_empty() { "0" } else { user };
    let number: Option<u32> = user.parse().ok();
    // As a name first: a number can be the name of another user's entry.
    let has_number = |fields: &Vec<&str>| number.is_some() && fields[2].parse().ok() == number;
    let entry = entries(passwd)
        .find(|fields| fields[0] == user)
        .or_else(|| entries(passwd).find(has_number));
    let (uid, entry_gid, home) = match &entry {
        Some(fields) => (
            fields.get(2).and_then(|text| text.parse().ok()).or(number),
            fields.get(3).and_then(|text| text.parse().ok()),
            fields.get(5).map(|home| (*home).to_owned()),
        ),
        None => (number, None, None),
    };
    let uid = uid.ok_or_else(|| UserError::UnknownUser(user.to_owned()))?;
    let gid = match (spec.group, group) {
        (Some(gid), _) => gid,
        (None, Some(group)) => find_group(group, group_file)?,
        (None, None) => entry_gid.unwrap_or(0),
    };
    let mut groups = vec![gid];
    let name = entry.as_ref().map(|fields| fields[0]);
    let of_image = name
        .into_iter()
        .filter(|_| !spec.strict_groups)
        .flat_map(|name| member_of(name, group_file).collect::<Vec<_>>());
    for extra in spec.supplemental_groups.iter().copied().chain(of_image) {
        if !groups.contains(&extra) && groups.len() < MAX_GROUPS {
            groups.push(extra);
        }
    }
    let home = home.filter(|home| home.starts_with('/'));
    Ok(User {
        uid,
        gid,
        groups,
        home,
    })
}

fn entries(file: &str) -> impl Iterator<Item = Vec<&str>> {
    file.lines()
        .map(|line| line.split(':').collect::<Vec<_>>())
        .filter(|fields| fields.len() > 2 && !fields[0].is_empty())
}

fn find_group(group: &str, file: &str) -> Result<u32, UserError> {
    entries(file)
        .find(|fields| fields[0] == group)
        .and_then(|fields| fields[2].parse().ok())
        .or_else(|| group.parse().ok())
        .ok_or_else(|| UserError::UnknownGroup(group.to_owned()))
}

fn member_of<'a>(name: &'a str, file: &'a str) -> impl Iterator<Item = u32> + 'a {
    entries(file).filter_map(move |fields| {
        let members = fields.get(3)?;
        members.split(',').any(|member| member == name).then_some(())?;
        fields[2].parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str =
        "root:x:0:0:root:/root:/bin/sh\nweb:x:33:34::/srv:\n77:x:5:6::/odd:\nbroken\n:x:1:1::/:\n";
    const GROUP: &str = "root:x:0:\nweb:x:34:\nlogs:x:50:other,web\nmore:x:51:web\n";

    fn user(user: &str) -> Result<User, UserError> {
        let spec = UserSpec {
            user: user.into(),
            group: None,
            supplemental_groups: vec![50, 99],
            strict_groups: false,
        };
        look_up_in(&spec, PASSWD, GROUP)
    }

    #[test]
    fn names_and_numbers_are_found() {
        let found = user("web").expect("is there");
        assert_eq!((found.uid, found.gid), (33, 34));
        assert_eq!(found.groups, [34, 50, 99, 51]);
        assert_eq!(found.home.as_deref(), Some("/srv"));
        assert_eq!(user("33"), user("web"));
        let number = user("1234").expect("numbers need no entry");
        assert_eq!((number.uid, number.gid, number.home), (1234, 0, None));
        assert_eq!(user("").expect("root").home.as_deref(), Some("/root"));
        assert_eq!(user("77").expect("a name").uid, 5, "a name comes before a number");
    }

    #[test]
    fn groups_are_found_or_refused() {
        assert_eq!(user("web:logs").expect("is there").gid, 50);
        assert_eq!(user("1:2").map(|user| (user.uid, user.gid)), Ok((1, 2)));
        assert_eq!(user("web:nope"), Err(UserError::UnknownGroup("nope".into())));
        assert_eq!(user("nope"), Err(UserError::UnknownUser("nope".into())));
        let spec = UserSpec {
            user: "web".into(),
            group: Some(7),
            ..UserSpec::default()
        };
        assert_eq!(look_up_in(&spec, PASSWD, GROUP).map(|user| user.gid), Ok(7));
    }

    #[test]
    fn strict_groups_are_the_pods_alone() {
        let groups = |strict_groups| {
            let spec = UserSpec {
                user: "web".into(),
                supplemental_groups: vec![99],
                strict_groups,
                ..UserSpec::default()
            };
            look_up_in(&spec, PASSWD, GROUP).map(|user| user.groups)
        };
        assert_eq!(groups(false), Ok(vec![34, 99, 50, 51]));
        assert_eq!(groups(true), Ok(vec![34, 99]));
    }
}
