//! What a container's processes may do.

use std::path::PathBuf;

use pulselet_cri_wire::v1;
use pulselet_cri_wire::v1::security_profile::ProfileType;
use pulselet_runtime::{AppArmor, Capabilities, Seccomp, SecurityContext, SecurityFeatures};

use super::{id, number, refuse_selinux};
use crate::refusal::RequestError;

/// What is the same for a sandbox and a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Users {
    pub(crate) user: Option<u32>,
    pub(crate) group: Option<u32>,
    pub(crate) supplemental_groups: Vec<u32>,
    pub(crate) strict_groups: bool,
}

impl Users {
    pub(crate) fn of_sandbox(context: &v1::LinuxSandboxSecurityContext) -> Result<Self, RequestError> {
        refuse_selinux(context.selinux_options.as_ref())?;
        let users = Self {
            user: id("run_as_user", context.run_as_user.as_ref())?,
            group: id("run_as_group", context.run_as_group.as_ref())?,
            supplemental_groups: groups(&context.supplemental_groups)?,
            strict_groups: is_strict(context.supplemental_groups_policy)?,
        };
        users.check(false)
    }

    fn of_container(context: &v1::LinuxContainerSecurityContext) -> Result<Self, RequestError> {
        let users = Self {
            user: id("run_as_user", context.run_as_user.as_ref())?,
            group: id("run_as_group", context.run_as_group.as_ref())?,
            supplemental_groups: groups(&context.supplemental_groups)?,
            strict_groups: is_strict(context.supplemental_groups_policy)?,
        };
        users.check(!context.run_as_username.is_empty())
    }

    /// A group alone says nothing: CRI wants the user whose it is.
    fn check(self, has_name: bool) -> Result<Self, RequestError> {
        if self.group.is_some() && self.user.is_none() && !has_name {
            return Err(RequestError::invalid(
                "run_as_group",
                "needs a user: give run_as_user too",
            ));
        }
        Ok(self)
    }
}

fn groups(given: &[i64]) -> Result<Vec<u32>, RequestError> {
    let numbers = given.iter().map(|group| number("supplemental_groups", *group));
    numbers.collect()
}

fn is_strict(policy: i32) -> Result<bool, RequestError> {
    match v1::SupplementalGroupsPolicy::try_from(policy) {
        Ok(v1::SupplementalGroupsPolicy::Merge) => Ok(false),
        Ok(v1::SupplementalGroupsPolicy::Strict) => Ok(true),
        Err(_) => Err(RequestError::invalid(
            "supplemental_groups_policy",
            format!("{policy} is not one"),
        )),
    }
}

/// `features` are the runtime's.
pub(crate) fn of_container(
    context: &v1::LinuxContainerSecurityContext,
    features: SecurityFeatures,
) -> Result<SecurityContext, RequestError> {
    refuse_selinux(context.selinux_options.as_ref())?;
    let users = Users::of_container(context)?;
    let paths = |paths: &[String]| -> Option<Vec<PathBuf>> {
        (!context.privileged).then(|| paths.iter().map(PathBuf::from).collect())
    };
    let name = Some(context.run_as_username.clone()).filter(|name| !name.is_empty());
    Ok(SecurityContext {
        privileged: context.privileged,
        run_as_user: users.user,
        run_as_username: name,
        run_as_group: users.group,
        supplemental_groups: users.supplemental_groups,
        strict_groups: users.strict_groups,
        read_only_root: context.readonly_rootfs,
        no_new_privs: context.no_new_privs,
        capabilities: context
            .capabilities
            .as_ref()
            .map(capabilities)
            .transpose()?
            .unwrap_or_default(),
        seccomp: seccomp(context.seccomp.as_ref())?,
        app_armor: app_armor(context, features)?,
        unmasked_proc: false,
        masked_paths: paths(&context.masked_paths),
        read_only_paths: paths(&context.readonly_paths),
    })
}

fn capabilities(given: &v1::Capability) -> Result<Capabilities, RequestError> {
    if !given.add_ambient_capabilities.is_empty() {
        return Err(RequestError::Unsupported {
            field: "add_ambient_capabilities",
            hint: "give the program's file the capabilities, or run it as root",
        });
    }
    let names = |names: &[String]| -> Vec<String> {
        let upper = names.iter().map(|name| name.to_ascii_uppercase());
        upper
            .map(|name| name.strip_prefix("CAP_").unwrap_or(&name).to_owned())
            .collect()
    };
    Ok(Capabilities {
        add: names(&given.add_capabilities),
        drop: names(&given.drop_capabilities),
    })
}

/// Without a profile there is none, as with other servers.
pub(crate) fn seccomp(profile: Option<&v1::SecurityProfile>) -> Result<Seccomp, RequestError> {
    let Some(profile) = profile else {
        return Ok(Seccomp::Unconfined);
    };
    match kind("seccomp", profile)? {
        ProfileType::RuntimeDefault => Ok(Seccomp::RuntimeDefault),
        ProfileType::Unconfined => Ok(Seccomp::Unconfined),
        ProfileType::Localhost => {
            let path = PathBuf::from(&profile.localhost_ref);
            let refused = || RequestError::invalid("seccomp", "localhost_ref is not an absolute path");
            path.is_absolute()
                .then_some(Seccomp::Localhost(path))
                .ok_or_else(refused)
        }
    }
}

fn kind(field: &'static str, profile: &v1::SecurityProfile) -> Result<ProfileType, RequestError> {
    let number = profile.profile_type;
    ProfileType::try_from(number)
        .map_err(|_| RequestError::invalid(field, format!("{number} is no kind of profile")))
}

/// The field, or what was there before it: `runtime/default`, `unconfined`, `localhost/NAME`.
fn app_armor(
    context: &v1::LinuxContainerSecurityContext,
    features: SecurityFeatures,
) -> Result<Option<AppArmor>, RequestError> {
    let wanted = match (&context.apparmor, context.apparmor_profile.as_str()) {
        (Some(profile), _) => match kind("apparmor", profile)? {
            ProfileType::RuntimeDefault => AppArmor::RuntimeDefault,
            ProfileType::Unconfined => AppArmor::Unconfined,
            ProfileType::Localhost => {
                let name = &profile.localhost_ref;
                AppArmor::Localhost(name.strip_prefix("localhost/").unwrap_or(name).to_owned())
            }
        },
        (None, "") => return Ok(None),
        (None, "runtime/default") => AppArmor::RuntimeDefault,
        (None, "unconfined") => AppArmor::Unconfined,
        (None, text) => match text.strip_prefix("localhost/") {
            Some(name) => AppArmor::Localhost(name.to_owned()),
            None => {
                return Err(RequestError::invalid(
                    "apparmor_profile",
                    format!("{text:?} is none"),
                ));
            }
        },
    };
    match wanted {
        // Where there are no profiles, there is nothing to be freed from.
        AppArmor::RuntimeDefault | AppArmor::Unconfined if !features.app_armor => Ok(None),
        AppArmor::Localhost(_) if !features.app_armor => Err(RequestError::Unsupported {
            field: "apparmor",
            hint: "this machine or runtime loads no AppArmor profiles",
        }),
        wanted => Ok(Some(wanted)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Context = v1::LinuxContainerSecurityContext;

    fn build(change: impl FnOnce(&mut Context)) -> Result<SecurityContext, String> {
        let mut context = Context::default();
        change(&mut context);
        of_container(&context, SecurityFeatures::NONE).map_err(|error| error.to_string())
    }

    #[test]
    fn names_of_capabilities_are_the_kernels_or_the_apis() {
        let built = build(|context| {
            context.capabilities = Some(v1::Capability {
                add_capabilities: vec!["CAP_NET_ADMIN".into(), "sys_time".into()],
                drop_capabilities: vec!["ALL".into()],
                ..v1::Capability::default()
            });
        });
        let capabilities = built.expect("is allowed").capabilities;
        assert_eq!(capabilities.add, ["NET_ADMIN", "SYS_TIME"]);
        assert_eq!(capabilities.drop, ["ALL"]);
    }

    #[test]
    fn a_group_needs_a_user() {
        let group = Some(v1::Int64Value { value: 7 });
        assert!(build(|context| context.run_as_group = group).is_err());
        let named = |context: &mut Context| {
            context.run_as_group = group;
            context.run_as_username = "web".into();
        };
        assert_eq!(build(named).expect("is allowed").run_as_group, Some(7));
        let negative = Some(v1::Int64Value { value: -1 });
        assert!(build(|context| context.run_as_user = negative).is_err());
    }

    #[test]
    fn profiles_are_where_they_are_said_to_be() {
        let profile = |kind: ProfileType, reference: &str| {
            Some(v1::SecurityProfile {
                profile_type: kind.into(),
                localhost_ref: reference.into(),
            })
        };
        let seccomp = |given: Option<v1::SecurityProfile>| seccomp(given.as_ref()).ok();
        assert_eq!(seccomp(None), Some(Seccomp::Unconfined));
        assert_eq!(
            seccomp(profile(ProfileType::RuntimeDefault, "")),
            Some(Seccomp::RuntimeDefault)
        );
        assert_eq!(seccomp(profile(ProfileType::Localhost, "relative.json")), None);
        let local = profile(ProfileType::Localhost, "localhost/mine");
        let error = build(|context| context.apparmor = local).expect_err("there is no AppArmor");
        assert!(error.starts_with("apparmor is not supported"), "{error}");
        let default = build(|context| context.apparmor_profile = "runtime/default".into());
        assert_eq!(default.expect("is allowed").app_armor, None);
    }

    #[test]
    fn empty_lists_of_paths_mask_nothing() {
        let built = build(|_| ()).expect("is allowed");
        assert_eq!(built.masked_paths, Some(Vec::new()));
        let privileged = build(|context| context.privileged = true).expect("is allowed");
        assert_eq!(privileged.masked_paths, None);
    }
}
