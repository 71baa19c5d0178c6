//! `runAsNonRoot`: a container that would run as root is not made.

use pulselet_model::{Container, Pod};
use thiserror::Error;

/// Whom a container runs as if its pod names nobody.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ImageUser {
    Number(u32),
    /// Only its image knows whose name that is.
    Name(String),
    /// The image could not be looked at.
    Unknown,
}

#[derive(Debug, PartialEq, Eq, Error)]
pub(crate) enum RootError {
    #[error("container's runAsUser breaks non-root policy (pod: \"{pod}\", container: {container})")]
    RunAsUser { pod: String, container: String },
    #[error("container has runAsNonRoot and image will run as root (pod: \"{pod}\", container: {container})")]
    Image { pod: String, container: String },
    #[error(
        "container has runAsNonRoot and image has non-numeric user ({user}), cannot verify user is non-root (pod: \
         \"{pod}\", container: {container})"
    )]
    Name {
        user: String,
        pod: String,
        container: String,
    },
    #[error(
        "container has runAsNonRoot and its image cannot be looked at, cannot verify user is non-root (pod: \"{pod}\", \
         container: {container})"
    )]
    Unknown { pod: String, container: String },
}

/// What a container says itself, and where it says nothing its pod.
struct Asked {
    non_root: bool,
    user: Option<i64>,
}

fn asked(pod: &Pod, container: &Container) -> Asked {
    let of_pod = pod.spec.security_context.as_ref();
    let own = container.security_context.as_ref();
    let non_root = own
        .and_then(|own| own.run_as_non_root)
        .or_else(|| of_pod?.run_as_non_root);
    Asked {
        non_root: non_root.unwrap_or(false),
        user: own
            .and_then(|own| own.run_as_user)
            .or_else(|| of_pod?.run_as_user),
    }
}

/// Whether [`check`] will need to know the image's user.
pub(crate) fn depends_on_image(pod: &Pod, container: &str) -> bool {
    pod.find_container(container).is_some_and(|container| {
        let asked = asked(pod, &container);
        asked.non_root && asked.user.is_none()
    })
}

pub(super) fn check(pod: &Pod, uid: &str, container: &Container, image: &ImageUser) -> Result<(), RootError> {
    let asked = asked(pod, container);
    if !asked.non_root {
        return Ok(());
    }
    let pod = format!("{}_{}({uid})", pod.name(), pod.namespace());
    let container = container.name.clone();
    match (asked.user, image) {
        (Some(0), _) => Err(RootError::RunAsUser { pod, container }),
        (None, ImageUser::Number(0)) => Err(RootError::Image { pod, container }),
        (None, ImageUser::Name(user)) => Err(RootError::Name {
            user: user.clone(),
            pod,
            container,
        }),
        (None, ImageUser::Unknown) => Err(RootError::Unknown { pod, container }),
        (Some(_), _) | (None, ImageUser::Number(_)) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn refused(of_pod: &Value, own: &Value, image: &ImageUser) -> Option<String> {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "shop"},
            "spec": {"securityContext": of_pod, "containers": [{"name": "app", "securityContext": own}]},
        }))
        .unwrap();
        let result = check(&pod, "u1", &pod.spec.containers[0], image);
        result.err().map(|error| error.to_string())
    }

    #[test]
    fn only_who_is_certainly_not_root_may_run() {
        let (nothing, non_root) = (json!({}), json!({"runAsNonRoot": true}));
        let root = ImageUser::Number(0);
        let words = |of_pod: &Value, own: &Value, image: &ImageUser| {
            refused(of_pod, own, image).expect("it is refused")
        };
        assert_eq!(refused(&nothing, &nothing, &root), None);
        assert_eq!(refused(&non_root, &json!({"runAsNonRoot": false}), &root), None);
        assert_eq!(refused(&non_root, &json!({"runAsUser": 7}), &root), None);
        assert_eq!(refused(&non_root, &nothing, &ImageUser::Number(7)), None);
        assert_eq!(
            words(&non_root, &nothing, &root),
            "container has runAsNonRoot and image will run as root (pod: \"web_shop(u1)\", container: app)"
        );
        assert!(words(&json!({"runAsUser": 0}), &non_root, &root).contains("breaks non-root policy"));
        assert!(
            words(&non_root, &nothing, &ImageUser::Name("www".into())).contains("non-numeric user (www)")
        );
        assert!(words(&non_root, &nothing, &ImageUser::Unknown).contains("cannot be looked at"));
    }
}
