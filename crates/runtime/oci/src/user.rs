//! Who a container's processes run as: numbers and names, looked up in the image's own /etc/passwd and /etc/group.
//!
//! The files may say anything: they are read up to a bound, and lines that make no sense are skipped. They are looked up
//! inside the container's root when it starts. Before that, its layers are enough to refuse a user that nothing can provide.
//!
//! What always holds: a number is that number, whatever names the image has. A pod's number is a promise about who its
//! processes are, and whoever checks that they are not root checks the number. An image's entry for a number gives it a
//! group, a home and further groups, nothing else.

use std::{collections::HashSet, fs::File, io::Read, path::PathBuf};

use pulselet_runtime::ContainerUser;
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

/// The largest user and group. With the numbers above it some of the kernel's calls mean "no change".
const MAX_ID: u32 = i32::MAX.cast_unsigned();

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
    #[error("user and group ids must be in the range 0-{MAX_ID}, not {0}")]
    OutOfRange(String),
    #[error("a pod with hostUsers false has the user and group ids below {count}, not {id}")]
    NotInPod { id: u32, count: u32 },
}

/// One half of what names a user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NumberOrName<'a> {
    Number(u32),
    Name(&'a str),
}

impl User {
    pub(crate) fn credentials(&self) -> ProcessCredentials {
        ProcessCredentials {
            uid: self.uid,
            gid: self.gid,
            groups: self.groups.clone(),
        }
    }

    /// As a container's status has it.
    pub(crate) fn report(&self) -> ContainerUser {
        ContainerUser {
            uid: self.uid,
            gid: self.gid,
            supplemental_groups: self.groups.clone(),
        }
    }
}

/// Looks the user up in the files of this process's root.
pub(crate) fn look_up(spec: &UserSpec) -> Result<User, UserError> {
    let text = |path: &str| open_inside(path).map(read).unwrap_or_default();
    look_up_in(spec, &text(PASSWD_FILE), &text(GROUP_FILE))
}

/// Opens a plain file of this process's root. A link of the image leads nowhere else, and nothing is waited for.
fn open_inside(path: &str) -> rustix::io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let root = openat(CWD, "/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let inside = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    let file = File::from(openat2(&root, path, flags, Mode::empty(), inside)?);
    if file.metadata().is_ok_and(|metadata| metadata.is_file()) {
        Ok(file)
    } else {
        Err(Errno::INVAL)
    }
}

/// Refuses a user or group that the image certainly does not have. What only a running container could decide is let through.
pub(crate) fn check_in_layers(spec: &UserSpec, layers: &[PathBuf]) -> Result<(), UserError> {
    let mut has_names = false;
    for part in spec.user.splitn(2, ':').filter(|part| !part.is_empty()) {
        match parse(part)? {
            NumberOrName::Name(_) => has_names = true,
            NumberOrName::Number(id) => in_pod(spec, id)?,
        }
    }
    let of_pod = spec.group.iter().chain(&spec.supplemental_groups);
    of_pod.copied().try_for_each(|id| in_pod(spec, id))?;
    if !has_names {
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
    let user = parse(if user.is_empty() { "0" } else { user })?;
    let entry = find_entry(user, passwd);
    let field = |index: usize| entry.as_ref().and_then(|fields| fields.get(index));
    let uid = match user {
        NumberOrName::Number(uid) => uid,
        NumberOrName::Name(name) => field(2)
            .and_then(|text| text.parse().ok())
            .ok_or_else(|| UserError::UnknownUser(name.to_owned()))?,
    };
    let gid = match (spec.group, group) {
        (Some(gid), _) => gid,
        (None, Some(group)) => find_group(group, group_file)?,
        (None, None) => field(3).and_then(|text| text.parse().ok()).unwrap_or(0),
    };
    for id in [uid, gid].iter().chain(&spec.supplemental_groups) {
        in_pod(spec, in_range(*id)?)?;
    }
    let mut groups = vec![gid];
    let of_image = field(0)
        .into_iter()
        .filter(|_| !spec.strict_groups)
        .flat_map(|name| member_of(name, group_file).collect::<Vec<_>>())
        .filter(|gid| in_range(*gid).is_ok() && in_pod(spec, *gid).is_ok());
    // An image may have hundreds of thousands of groups: they are not compared each with each.
    let mut seen = HashSet::from([gid]);
    for extra in spec.supplemental_groups.iter().copied().chain(of_image) {
        if groups.len() < MAX_GROUPS && seen.insert(extra) {
            groups.push(extra);
        }
    }
    let home = field(5).filter(|home| home.starts_with('/'));
    Ok(User {
        uid,
        gid,
        groups,
        home: home.map(|home| (*home).to_owned()),
    })
}

/// For a fuzzer: what is found is in range, and a number is itself.
pub(crate) fn fuzz_look_up(spec: &UserSpec, passwd: &str, group_file: &str) {
    let Ok(found) = look_up_in(spec, passwd, group_file) else {
        return;
    };
    assert!(found.groups.len() <= MAX_GROUPS);
    assert!(
        [found.uid, found.gid]
            .iter()
            .chain(&found.groups)
            .all(|id| *id <= MAX_ID)
    );
    let name = spec.user.split(':').next().unwrap_or_default();
    if let Ok(number) = name.parse::<u32>() {
        assert_eq!(found.uid, number, "a number is that number");
    }
}

/// What looks like a number is one, or is refused: it is never a name.
fn parse(text: &str) -> Result<NumberOrName<'_>, UserError> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Ok(NumberOrName::Name(text));
    }
    let number = text.parse().ok().and_then(|id| in_range(id).ok());
    number
        .map(NumberOrName::Number)
        .ok_or_else(|| UserError::OutOfRange(text.to_owned()))
}

fn in_range(id: u32) -> Result<u32, UserError> {
    if id <= MAX_ID {
        Ok(id)
    } else {
        Err(UserError::OutOfRange(id.to_string()))
    }
}

/// Refuses what the pod's own users do not have.
fn in_pod(spec: &UserSpec, id: u32) -> Result<(), UserError> {
    match spec.id_count {
        Some(count) if id >= count => Err(UserError::NotInPod { id, count }),
        Some(_) | None => Ok(()),
    }
}

fn find_entry<'a>(user: NumberOrName<'_>, passwd: &'a str) -> Option<Vec<&'a str>> {
    entries(passwd).find(|fields| match user {
        NumberOrName::Number(uid) => fields[2].parse() == Ok(uid),
        NumberOrName::Name(name) => fields[0] == name,
    })
}

fn entries(file: &str) -> impl Iterator<Item = Vec<&str>> {
    file.lines()
        .map(|line| line.split(':').collect::<Vec<_>>())
        .filter(|fields| fields.len() > 2 && !fields[0].is_empty())
}

fn find_group(group: &str, file: &str) -> Result<u32, UserError> {
    match parse(group)? {
        NumberOrName::Number(gid) => Ok(gid),
        NumberOrName::Name(name) => entries(file)
            .find(|fields| fields[0] == name)
            .and_then(|fields| fields[2].parse().ok())
            .ok_or_else(|| UserError::UnknownGroup(name.to_owned())),
    }
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
            ..UserSpec::default()
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
        let number = user("77").expect("a number");
        assert_eq!((number.uid, number.gid), (77, 0), "a number is no name");
        assert_eq!(user("1:77").expect("a number").gid, 77);
    }

    #[test]
    fn numbers_that_the_kernel_takes_for_none_are_refused() {
        for text in [
            "4294967295",
            "2147483648",
            "-1",
            "99999999999999999999",
            "1:4294967295",
        ] {
            assert!(matches!(user(text), Err(UserError::OutOfRange(_))), "{text}");
        }
        assert_eq!(user("2147483647").expect("is in range").uid, MAX_ID);
        let spec = UserSpec {
            user: "odd".into(),
            ..UserSpec::default()
        };
        let found = look_up_in(&spec, "odd:x:4294967295:0::/:", "");
        assert!(matches!(found, Err(UserError::OutOfRange(_))), "of an entry too");
        let spec = UserSpec {
            supplemental_groups: vec![u32::MAX],
            ..UserSpec::default()
        };
        assert!(look_up_in(&spec, "", "").is_err());
    }

    #[test]
    fn users_that_the_pod_does_not_have_are_refused() {
        let look_up = |user: &str, group, group_file: &str| {
            let spec = UserSpec {
                user: user.into(),
                group,
                id_count: Some(65_536),
                ..UserSpec::default()
            };
            let checked = check_in_layers(&spec, &[]).is_ok();
            (
                checked,
                look_up_in(&spec, "odd:x:70000:0::/:\nweb:x:33:34::/:", group_file),
            )
        };
        assert!(look_up("65535", Some(65_535), "").1.is_ok());
        for (user, group) in [("65536", None), ("1", Some(65_536)), ("1:65536", None)] {
            let (checked, found) = look_up(user, group, "");
            assert!(
                !checked && matches!(found, Err(UserError::NotInPod { .. })),
                "{user}"
            );
        }
        assert!(matches!(
            look_up("odd", None, "").1,
            Err(UserError::NotInPod { .. })
        ));
        let groups = look_up("web", None, "far:x:70000:web\nnear:x:7:web")
            .1
            .map(|user| user.groups);
        assert_eq!(groups, Ok(vec![34, 7]));
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

    /// Comparing them each with each would take minutes.
    #[test]
    fn very_many_groups_of_an_image_are_taken_up_to_the_kernels_bound() {
        let lines: Vec<String> = (0..300_000).map(|gid| format!("g:x:{gid}:web\n")).collect();
        let lines = lines.concat();
        let spec = UserSpec {
            user: "web".into(),
            ..UserSpec::default()
        };
        let found = look_up_in(&spec, PASSWD, &lines).expect("is there");
        assert_eq!(found.groups.len(), MAX_GROUPS);
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
