//! Which pods' volumes are made from which objects.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use crate::objects::SourceObject;

/// Pods are known by their uids.
#[derive(Debug, Default)]
pub(crate) struct UsedObjects {
    by_pod: HashMap<Arc<str>, BTreeSet<SourceObject>>,
    users: BTreeMap<SourceObject, BTreeSet<Arc<str>>>,
}

impl UsedObjects {
    /// A pod uses these objects from now on, and no others. True if some object came into use or went out of it.
    pub(crate) fn set(&mut self, uid: &Arc<str>, objects: BTreeSet<SourceObject>) -> bool {
        let before = self.by_pod.remove(uid).unwrap_or_default();
        let mut is_new = false;
        for object in objects.difference(&before) {
            let users = self.users.entry(object.clone()).or_default();
            is_new |= users.is_empty();
            users.insert(Arc::clone(uid));
        }
        for object in before.difference(&objects) {
            if let Some(users) = self.users.get_mut(object) {
                users.remove(uid);
                if users.is_empty() {
                    self.users.remove(object);
                    is_new = true;
                }
            }
        }
        if !objects.is_empty() {
            self.by_pod.insert(Arc::clone(uid), objects);
        }
        is_new
    }

    /// All that somebody uses.
    pub(crate) fn all(&self) -> BTreeSet<SourceObject> {
        self.users.keys().cloned().collect()
    }

    pub(crate) fn of(&self, uid: &str) -> impl Iterator<Item = &SourceObject> {
        self.by_pod.get(uid).into_iter().flatten()
    }

    pub(crate) fn users(&self, object: &SourceObject) -> impl Iterator<Item = &Arc<str>> {
        self.users.get(object).into_iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::SourceKind;

    fn objects(names: &[&str]) -> BTreeSet<SourceObject> {
        let object = |name: &&str| SourceObject {
            kind: SourceKind::ConfigMap,
            namespace: "shop".to_owned(),
            name: (*name).to_owned(),
        };
        names.iter().map(object).collect()
    }

    #[test]
    fn an_object_is_in_use_from_its_first_user_to_its_last() {
        let (one, two): (Arc<str>, Arc<str>) = ("u-1".into(), "u-2".into());
        let mut used = UsedObjects::default();
        assert!(used.set(&one, objects(&["a", "b"])));
        assert!(!used.set(&two, objects(&["b"])));
        assert_eq!(used.all(), objects(&["a", "b"]));
        let shared = objects(&["b"]).pop_first().unwrap();
        assert_eq!(used.users(&shared).collect::<Vec<_>>(), [&one, &two]);
        assert_eq!(used.of("u-1").count(), 2);
        assert!(!used.set(&one, objects(&["a"])));
        assert!(used.set(&two, BTreeSet::new()));
        assert_eq!(used.all(), objects(&["a"]));
        assert!(used.set(&one, BTreeSet::new()));
        assert!(used.all().is_empty() && used.by_pod.is_empty());
    }
}
