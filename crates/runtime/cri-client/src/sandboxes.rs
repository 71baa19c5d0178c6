//! Our sandboxes at the server.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pulselet_runtime::{
    Error, IdRange, ObjectKind, Operation, Result, SandboxConfig, SandboxId, SandboxState, SandboxStatus,
    user_ids,
};

use crate::call::{ASK, CHANGE, CallError, RUN_SANDBOX, call};
use crate::connection::Connection;
use crate::runtime::{blocking, is_name_taken};
use crate::sub_path::SubPaths;
use crate::wire::v1;
use crate::{labels, leftover, sandbox};

/// Containers of one sandbox whose removal may need help.
const MAX_LEFTOVERS: usize = 32;

#[derive(Debug)]
pub(crate) struct Sandboxes {
    connection: Connection,
    owner: String,
    sub_paths: SubPaths,
    /// Held while a sandbox that has users of its own is made.
    giving_users: tokio::sync::Mutex<()>,
    /// Of sandboxes that are ready. They do not change, and a listing does not have them.
    addresses: Mutex<HashMap<SandboxId, Vec<IpAddr>>>,
}

impl Sandboxes {
    pub(crate) fn new(connection: Connection, owner: String, sub_paths: SubPaths) -> Self {
        Self {
            connection,
            owner,
            sub_paths,
            giving_users: tokio::sync::Mutex::default(),
            addresses: Mutex::default(),
        }
    }

    pub(crate) async fn run(&self, config: &SandboxConfig) -> Result<SandboxId> {
        let operation = Operation::RunSandbox;
        let made = tokio::fs::create_dir_all(&config.log_directory).await;
        made.map_err(|error| Error::failed(operation, error))?;
        let id = if config.namespaces.own_users && config.namespaces.user_ids.is_none() {
            // Until the sandbox is listed nobody else knows which users it has.
            let _one_at_a_time = self.giving_users.lock().await;
            let mut config = config.clone();
            config.namespaces.user_ids = Some(self.free_users().await?);
            self.run_in_its_place(&config).await?
        } else {
            self.run_in_its_place(config).await?
        };
        self.remove_older(config).await;
        Ok(id)
    }

    async fn run_in_its_place(&self, config: &SandboxConfig) -> Result<SandboxId> {
        let id = match self.ask_to_run(config).await {
            Err(error) if is_name_taken(&error) => {
                self.make_room(config, error).await?;
                self.ask_to_run(config).await
            }
            result => result,
        };
        id.map_err(|error| error.of(Operation::RunSandbox))
    }

    /// Users that no sandbox of the server has, and nobody else on this machine. CRI leaves it to us to choose them.
    async fn free_users(&self) -> Result<IdRange> {
        let items = self.items(labels::Map::new()).await?;
        let mut taken = blocking(user_ids::of_machine).await;
        taken.extend(items.iter().filter_map(sandbox::user_ids));
        let seed = self.owner.bytes().fold(0, |seed: u64, byte| {
            seed.wrapping_mul(31).wrapping_add(u64::from(byte))
        });
        let full = "all ranges of users for pods with hostUsers false are taken; remove one of those pods";
        user_ids::free_range(&taken, seed).ok_or_else(|| Error::failed(Operation::RunSandbox, full))
    }

    async fn ask_to_run(&self, config: &SandboxConfig) -> std::result::Result<SandboxId, CallError> {
        let request = v1::RunPodSandboxRequest {
            config: Some(sandbox::to_wire(config, &self.owner)),
            runtime_handler: config.runtime_handler.clone(),
        };
        let answer = call(RUN_SANDBOX, self.connection.runtime().run_pod_sandbox(request)).await?;
        Ok(SandboxId::new(answer.pod_sandbox_id))
    }

    /// The name of a new sandbox is taken: by itself, made by a call whose answer was lost; by what is left of it,
    /// which is removed; or by somebody else's.
    async fn make_room(&self, config: &SandboxConfig, error: CallError) -> Result<()> {
        let items = self
            .items(labels::pod_selector(&self.owner, &config.pod.uid))
            .await?;
        let same = |status: &SandboxStatus| status.attempt == config.attempt;
        match items.into_iter().map(sandbox::from_item).find(same) {
            Some(status) if status.state == SandboxState::NotReady => self.remove(&status.id).await,
            Some(status) => Err(Error::AlreadyExists {
                kind: ObjectKind::Sandbox,
                id: status.id.to_string(),
            }),
            None => Err(error.of(Operation::RunSandbox)),
        }
    }

    /// Sandboxes of the pod that can run nothing any more have nothing that is still needed: logs are files.
    async fn remove_older(&self, config: &SandboxConfig) {
        let items = self
            .items(labels::pod_selector(&self.owner, &config.pod.uid))
            .await;
        let older = |status: &SandboxStatus| {
            status.attempt < config.attempt && status.state == SandboxState::NotReady
        };
        for status in items
            .unwrap_or_default()
            .into_iter()
            .map(sandbox::from_item)
            .filter(older)
        {
            if let Err(error) = self.remove(&status.id).await {
                tracing::warn!(sandbox = %status.id, %error, "cannot remove an old sandbox; it goes with its pod");
            }
        }
    }

    pub(crate) async fn stop(&self, id: &SandboxId) -> Result<()> {
        let request = v1::StopPodSandboxRequest {
            pod_sandbox_id: id.to_string(),
        };
        match call(CHANGE, self.connection.runtime().stop_pod_sandbox(request)).await {
            Ok(_) => Ok(()),
            Err(error) if error.is_not_found() => Ok(()),
            Err(error) => Err(error.of(Operation::StopSandbox)),
        }
    }

    pub(crate) async fn remove(&self, id: &SandboxId) -> Result<()> {
        self.stop(id).await?;
        // One container at a time is in the way.
        for _ in 0..MAX_LEFTOVERS {
            match self.ask_to_remove(id).await {
                Err(error) if leftover::clear(&self.connection, &error).await => {}
                Err(error) if !error.is_not_found() => return Err(error.of(Operation::RemoveSandbox)),
                Ok(()) | Err(_) => break,
            }
        }
        self.addresses().remove(id);
        let (sub_paths, id) = (self.sub_paths.clone(), id.to_string());
        blocking(move || sub_paths.forget_sandbox(&id)).await;
        Ok(())
    }

    async fn ask_to_remove(&self, id: &SandboxId) -> std::result::Result<(), CallError> {
        let request = v1::RemovePodSandboxRequest {
            pod_sandbox_id: id.to_string(),
        };
        call(CHANGE, self.connection.runtime().remove_pod_sandbox(request)).await?;
        Ok(())
    }

    pub(crate) async fn status(&self, id: &SandboxId) -> Result<SandboxStatus> {
        let status = sandbox::from_wire(self.ask(id).await?);
        if status.state == SandboxState::Ready {
            self.addresses().insert(id.clone(), status.addresses.clone());
        }
        Ok(status)
    }

    /// What a sandbox was made with.
    pub(crate) async fn config(&self, id: &SandboxId) -> Result<SandboxConfig> {
        sandbox::recalled(&self.ask(id).await?)
    }

    async fn ask(&self, id: &SandboxId) -> Result<v1::PodSandboxStatus> {
        let request = v1::PodSandboxStatusRequest {
            pod_sandbox_id: id.to_string(),
            verbose: false,
        };
        let answer = call(ASK, self.connection.runtime().pod_sandbox_status(request)).await;
        let answer =
            answer.map_err(|error| error.on(Operation::SandboxStatus, ObjectKind::Sandbox, id.as_str()))?;
        answer.status.ok_or_else(|| Error::no_sandbox(id))
    }

    pub(crate) async fn list(&self) -> Result<Vec<SandboxStatus>> {
        let items = self.items(labels::selector(&self.owner)).await?;
        let mut all = Vec::with_capacity(items.len());
        for item in items {
            let listed = sandbox::from_item(item);
            all.extend(self.with_addresses(listed).await?);
        }
        let is_there = |id: &SandboxId| all.iter().any(|status| status.id == *id);
        self.addresses().retain(|id, _| is_there(id));
        Ok(all)
    }

    pub(crate) async fn of_pod(&self, uid: &str) -> Result<Vec<SandboxStatus>> {
        let mut all = Vec::new();
        for item in self.items(labels::pod_selector(&self.owner, uid)).await? {
            all.extend(self.with_addresses(sandbox::from_item(item)).await?);
        }
        Ok(all)
    }

    /// A listed sandbox with its addresses; none if it went away meanwhile.
    async fn with_addresses(&self, listed: SandboxStatus) -> Result<Option<SandboxStatus>> {
        if listed.state == SandboxState::NotReady {
            return Ok(Some(listed));
        }
        let known = self.addresses().get(&listed.id).cloned();
        if let Some(addresses) = known {
            return Ok(Some(SandboxStatus { addresses, ..listed }));
        }
        match self.status(&listed.id).await {
            Ok(status) => Ok(Some(status)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn items(&self, label_selector: labels::Map) -> Result<Vec<v1::PodSandbox>> {
        let request = v1::ListPodSandboxRequest {
            filter: Some(v1::PodSandboxFilter {
                label_selector,
                ..v1::PodSandboxFilter::default()
            }),
        };
        let answer = call(ASK, self.connection.runtime().list_pod_sandbox(request)).await;
        Ok(answer.map_err(|error| error.of(Operation::List))?.items)
    }

    fn addresses(&self) -> MutexGuard<'_, HashMap<SandboxId, Vec<IpAddr>>> {
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
