//! Room for requests: how many may be under way, in all and for each caller.
//!
//! What must always hold: one caller alone cannot take all the room, and nobody takes the last of it from those who
//! keep the cluster going. Nodes have a reserve that other users cannot take, so that leases are renewed, and
//! administrators have one that nodes cannot take either, so that somebody can look at what is wrong.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::access::{Identity, Standing};
use crate::rest::status::ApiError;

/// How many requests that change something may be under way, as upstream has it.
const MAX_MUTATING: usize = 200;
/// How many requests that only read may be under way.
const MAX_READING: usize = 400;
/// How many watches and streams to nodes there may be. They live long and do little.
const MAX_LONG_RUNNING: usize = 5000;
/// One in this many is kept for nodes, and as many again for administrators.
const RESERVE: usize = 8;
/// An administrator may take half of the room: all their programs come under one name.
const ADMINISTRATOR_SHARE: usize = 2;
/// Any other user, a node too, may take a quarter.
const USER_SHARE: usize = 4;

/// What a request takes room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Load {
    Mutating,
    Reading,
    LongRunning,
}

/// All the room there is.
#[derive(Debug)]
pub(crate) struct Room {
    mutating: Arc<Pool>,
    reading: Arc<Pool>,
    long_running: Arc<Pool>,
}

#[derive(Debug)]
struct Pool {
    capacity: usize,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    total: usize,
    /// Users that have requests under way.
    by_user: HashMap<String, usize>,
}

/// The room that one request has taken; it is free again when this is dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    pool: Arc<Pool>,
    user: String,
}

impl Room {
    pub(crate) fn new() -> Self {
        let pool = |capacity| {
            Arc::new(Pool {
                capacity,
                taken: Mutex::default(),
            })
        };
        Self {
            mutating: pool(MAX_MUTATING),
            reading: pool(MAX_READING),
            long_running: pool(MAX_LONG_RUNNING),
        }
    }

    /// Takes room for one more request, or advises the client to come back.
    pub(crate) fn take(&self, identity: &Identity, load: Load) -> Result<Permit, ApiError> {
        let pool = match load {
            Load::Mutating => &self.mutating,
            Load::Reading => &self.reading,
            Load::LongRunning => &self.long_running,
        };
        pool.take(identity).ok_or_else(ApiError::too_many_requests)
    }
}

impl Pool {
    fn take(self: &Arc<Self>, identity: &Identity) -> Option<Permit> {
        let reserve = self.capacity / RESERVE;
        let (limit, share) = match identity.standing() {
            Standing::Administrator => (self.capacity, self.capacity / ADMINISTRATOR_SHARE),
            Standing::Node => (self.capacity - reserve, self.capacity / USER_SHARE),
            Standing::Other | Standing::Anonymous => {
                (self.capacity - 2 * reserve, self.capacity / USER_SHARE)
            }
        };
        let mut taken = lock(&self.taken);
        let own = taken.by_user.get(&identity.user).copied().unwrap_or(0);
        if taken.total >= limit || own >= share {
            return None;
        }
        taken.total += 1;
        taken.by_user.insert(identity.user.clone(), own + 1);
        Some(Permit {
            pool: Arc::clone(self),
            user: identity.user.clone(),
        })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut taken = lock(&self.pool.taken);
        taken.total -= 1;
        if let Some(own) = taken.by_user.get_mut(&self.user) {
            *own -= 1;
            // Otherwise the table would grow with every user there ever was.
            if *own == 0 {
                taken.by_user.remove(&self.user);
            }
        }
    }
}

/// The counts are whole between any two statements, so a panic elsewhere does not spoil them.
fn lock(taken: &Mutex<Taken>) -> std::sync::MutexGuard<'_, Taken> {
    taken.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(name: &str, group: &str) -> Identity {
        Identity {
            user: name.to_owned(),
            groups: vec![group.to_owned()],
            ..Identity::default()
        }
    }

    /// Takes all that a user can get.
    fn fill(room: &Room, identity: &Identity) -> Vec<Permit> {
        std::iter::from_fn(|| room.take(identity, Load::Mutating).ok()).collect()
    }

    #[test]
    fn nobody_takes_the_last_of_the_room_from_nodes_and_administrators() {
        let room = Room::new();
        let admin = user("admin", "system:masters");
        let mut held = Vec::new();
        let mut share = |identity: &Identity| {
            let permits = fill(&room, identity);
            let count = permits.len();
            held.extend(permits);
            count
        };
        assert_eq!(share(&user("a", "")), 50, "one user has a share");
        assert_eq!((share(&user("b", "")), share(&user("c", ""))), (50, 50));
        assert_eq!(share(&user("d", "")), 0, "the rest is reserved");
        assert_eq!(share(&user("system:node:n1", "system:nodes")), 25);
        assert_eq!(share(&user("system:node:n2", "system:nodes")), 0);
        assert_eq!(share(&admin), 25);
        assert!(room.take(&admin, Load::Mutating).is_err());
        assert!(
            room.take(&admin, Load::Reading).is_ok(),
            "reading has room of its own"
        );
    }

    #[test]
    fn an_administrator_leaves_room_for_nodes_and_gives_it_back() {
        let room = Room::new();
        let admin = user("admin", "system:masters");
        let held = fill(&room, &admin);
        assert_eq!(held.len(), 100);
        assert!(
            room.take(&user("system:node:n1", "system:nodes"), Load::Mutating)
                .is_ok()
        );
        drop(held);
        assert_eq!(fill(&room, &admin).len(), 100);
        assert!(lock(&room.mutating.taken).by_user.is_empty());
    }
}
